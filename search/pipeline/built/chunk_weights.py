"""How much a second of each stage's work counts when strategies are chosen for the stages.

Problem: strategies are chosen by a sum of seconds, but a step is no sum. The slowest stage delays
it in every micro-batch, and a stage that is done early may take its time to update weights.

Method: successive linear approximations. The seconds of a step are a function of the seconds of its
chunks (``search.pipeline.clock``), and the weight of a chunk is a difference quotient of that
function at the pipeline as it is. Larger differences look further ahead, where another stage would
be the slowest. A heuristic: strategies change seconds by steps, so what is best by the weights is
built and priced.

Complexity: two looks at the turns of a step for each chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pcg.plan.pipeline import ScheduleKind
from search.cost.progress import check_time
from search.pipeline.clock import StageSeconds, step_seconds

LEAST = 0.05
"""The least weight, as a fraction of that in a plain sum: among strategies that do not delay the
step, the one with the least work is best."""


class ChunkWeights(NamedTuple):
    """What a second counts, by chunk in the order of data. ``micro``: of the work for each
    micro-batch; ``once``: of the work that is done once a step."""

    micro: tuple[float, ...]
    once: tuple[float, ...]

    def raised(self, micro_batches: int) -> ChunkWeights:
        """The weights, none of them below a part of that in a plain sum."""
        least = LEAST * micro_batches
        micro = tuple(max(least, own) for own in self.micro)
        return ChunkWeights(micro, tuple(max(LEAST, own) for own in self.once))


def plain_weights(chunks: int, micro_batches: int) -> ChunkWeights:
    """The weights by which the sum is the work of all stages in a step."""
    return ChunkWeights((float(micro_batches),) * chunks, (1.0,) * chunks)


def delays(
    chunks: Sequence[StageSeconds],
    micro_batches: int,
    kind: ScheduleKind,
    interleave: int,
    by: float,
) -> ChunkWeights:
    """By how many seconds a step takes longer if a chunk takes one more for each micro-batch, or
    once. The arguments are those of ``step_seconds``. ``by``: the difference of all seconds of a
    chunk in a step, as a fraction of the step."""
    order = micro_batches, kind, interleave
    step = step_seconds(chunks, *order)
    more = by * step

    def delay(number: int, longer: StageSeconds) -> float:
        check_time()  # many chunks have many turns
        return (step_seconds(_with(chunks, number, longer), *order) - step) / more

    each = [delay(at, _longer(own, more / micro_batches)) for at, own in enumerate(chunks)]
    once = [delay(at, replace(own, after=own.after + more)) for at, own in enumerate(chunks)]
    return ChunkWeights(tuple(micro_batches * own for own in each), tuple(once))


def _with(chunks: Sequence[StageSeconds], number: int, changed: StageSeconds) -> list[StageSeconds]:
    return [changed if at == number else own for at, own in enumerate(chunks)]


def _longer(own: StageSeconds, more: float) -> StageSeconds:
    """A chunk that works so many seconds more for each micro-batch, in all its passes alike."""
    work = own.forward + own.backward + own.weights
    times = 1.0 + more / work if work else 1.0
    return replace(
        own,
        forward=own.forward * times,
        backward=own.backward * times,
        weights=own.weights * times,
    )
