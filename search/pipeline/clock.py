"""Seconds of a step of a pipeline by its schedule: 1F1B, interleaved or not, or PipeDream-2BW.

By 1F1B stages take turns as ``pcg.plan.pipeline`` says, each of which waits for the chunk before
or, on the way back, the one after it. All gradients are exchanged and weights updated before the
next step begins. Of p equal stages with v chunks each, devices wait for (p - 1) / (v m) of the time
for which they work on m micro-batches. PipeDream-2BW (Narayanan et al., ICML 2021) takes the next
step's micro-batches without waiting for updates: the forward passes under way still use the weights
of one update before, so that each stage holds two versions, and a step takes as long as its slowest
stage works.

Of many micro-batches only some are followed: once all turns of ``STEADY`` rounds in a row, of as
many micro-batches as there are stages, come as much later as those of the round before, all later
rounds do, as nothing waits for what is longer ago. Complexity: one look-up for each turn of each
stage that is followed. Exact up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pcg.plan.pipeline import turns

ScheduleKind = Literal["1f1b", "2bw"]
TurnEnds = dict[bool, list[list[float]]]
"""When turns are done: by whether they are forward, number of the chunk, and micro-batch."""
STEADY = 3
"""So many rounds long ago nothing waits for."""
DRAINING = 4
"""In so many last rounds the order may be another."""
FIRST_ROUNDS = 1 + STEADY + DRAINING + 1
MORE_ROUNDS = 4
"""By what factor more are followed where so many do not come to a steady state."""
ROUNDING = 1e-12
"""Of a step: turns that differ by as little come at the same time."""

NEVER = -1.0
"""When what has not been done yet is done."""
WEIGHT_VERSIONS = {"1f1b": 1, "2bw": 2}
"""How many versions of its weights a stage holds."""


@dataclass(frozen=True)
class StageSeconds:
    """What a stage does in a step, or one of its chunks, in seconds; transfers count at both of
    their ends."""

    forward: float
    """One micro-batch."""
    backward: float
    """One micro-batch."""
    before: float = 0.0
    """Once a step, before the first micro-batch: what reads no samples."""
    after: float = 0.0
    """Once a step, after the last one: the exchange of gradients, and the update."""

    def busy(self, micro_batches: int) -> float:
        """All its work of a step."""
        return self.before + micro_batches * (self.forward + self.backward) + self.after


def step_seconds(
    chunks: Sequence[StageSeconds],
    micro_batches: int,
    kind: ScheduleKind = "1f1b",
    interleave: int = 1,
) -> float:
    """Seconds of a step: until the last stage has updated its weights, or in 2BW's steady state.
    ``chunks``: in the order in which data flows, ``interleave`` of each stage; stages where that
    is 1."""
    if kind == "2bw":
        return max(stage.busy(micro_batches) for stage in chunks)
    stages = len(chunks) // interleave
    rounds, more = divmod(micro_batches, stages)
    followed = more + FIRST_ROUNDS
    while followed < rounds:
        ends = turn_ends(chunks, followed * stages + more, interleave)
        each = _steady(ends, stages)
        if each is not None:
            return _last(chunks, ends, stages) + (rounds - followed) * each
        followed *= MORE_ROUNDS
    return _last(chunks, turn_ends(chunks, micro_batches, interleave), stages)


def _steady(ends: TurnEnds, stages: int) -> float | None:
    """Seconds of each further round, where rounds come one like the other until the last ones, in
    which no new micro-batches begin."""
    each: list[float] = []
    for way in ends.values():
        for own in way:
            last = len(own) - DRAINING * stages
            some = range(last - STEADY * stages, last)
            each += [own[batch] - own[batch - stages] for batch in some]
    least, most = min(each), max(each)
    return most if most - least <= ROUNDING * max(own[-1] for own in ends[False]) else None


def _last(chunks: Sequence[StageSeconds], ends: TurnEnds, stages: int) -> float:
    """When the last stage has updated its weights."""
    after = [sum(chunk.after for chunk in chunks[s::stages]) for s in range(stages)]
    return max(ends[False][s][-1] + after[s] for s in range(stages))


def flush_ends(
    chunks: Sequence[StageSeconds], micro_batches: int, interleave: int = 1
) -> list[float]:
    """When each stage has done its last backward pass, by 1F1B."""
    ends = turn_ends(chunks, micro_batches, interleave)
    return [ends[False][number][-1] for number in range(len(chunks) // interleave)]


def turn_ends(chunks: Sequence[StageSeconds], micro_batches: int, interleave: int = 1) -> TurnEnds:
    """When each turn is done by 1F1B."""
    count, last = len(chunks) // interleave, len(chunks) - 1
    done = {way: [[NEVER] * micro_batches for _ in chunks] for way in (True, False)}
    left = [turns(s, count, micro_batches, interleave) for s in range(count)]
    following = [next(own, None) for own in left]
    clocks = [sum(chunk.before for chunk in chunks[s::count]) for s in range(count)]
    ready = list(range(count))
    while ready:
        ready = [s for s in ready if (turn := following[s]) is not None]
        moved = False
        for s in ready:
            while (turn := following[s]) is not None:
                is_forward, batch, chunk = turn
                number = chunk * count + s
                source = number - 1 if is_forward else number + 1
                waits = done[is_forward][source][batch] if 0 <= source <= last else 0.0
                if waits == NEVER:
                    break
                own = chunks[number]
                clocks[s] = max(clocks[s], waits) + (own.forward if is_forward else own.backward)
                done[is_forward][number][batch] = clocks[s]
                following[s], moved = next(left[s], None), True
        assert moved or not ready, "1F1B never waits in turn"
    return done
