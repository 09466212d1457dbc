"""Start times of the passes of micro-batches through the stages of a pipeline, as they are priced.

For 1F1B and ZB-H1, they are those of ``search.pipeline.clock``, from the start of a step to its
end. PipeDream-2BW has no such start, since one step begins while others are under way. The result
is then one of many steps that follow each other. Each begins as many seconds after the one before
as the slowest stage works in a step, and no stage does two things at a time. Stages alternate one
forward and one backward pass. As in 1F1B, each stage has one more micro-batch under way than the
next stage. If stages are so uneven that the slowest would have to wait, which the price leaves out,
each has 2, 4, ... more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from pcg.plan.pipeline import ScheduleKind, TurnKind
from search.cost.progress import check_time
from search.pipeline.clock import StageSeconds, step_seconds, turn_ends

SWEEPS = 100
"""The number of sweeps over the turns of a steady state, after which it counts as not settled."""
ROUNDING = 1e-12
"""The fraction of a step by which a turn has to be later to count as later."""
PassKind = Literal["before", "forward", "backward", "weights", "after"]


@dataclass(frozen=True)
class Pass:
    """A pass of a stage. ``start``: seconds from the start of a step."""

    kind: PassKind
    stage: int
    batch: int
    """The number of the micro-batch: the first one for ``before``, the last one for ``after``."""
    start: float
    seconds: float
    chunk: int = 0
    """The number of the stage's chunk."""

    @property
    def end(self) -> float:
        return self.start + self.seconds


def passes(
    chunks: Sequence[StageSeconds], micro_batches: int, kind: ScheduleKind, interleave: int = 1
) -> Iterator[Pass]:
    """All passes of the stages in a step. ``chunks``: as for ``step_seconds``."""
    if kind == "2bw":
        starts = _steady(chunks, micro_batches)
    else:
        starts = _flushed(chunks, micro_batches, kind, interleave)
    count = len(chunks) // interleave
    for number, (own, start) in enumerate(zip(chunks, starts, strict=True)):
        chunk, s = divmod(number, count)
        if not chunk:
            before, after = (sum(t) for t in zip(*map(_once, chunks[s::count]), strict=True))
            yield Pass("before", s, 0, start.before, before)
            done = start.backward[-1] + own.backward
            done = start.weights[-1] + own.weights if start.weights else done
            yield Pass("after", s, micro_batches - 1, done, after)
        for batch in range(micro_batches):
            yield Pass("forward", s, batch, start.forward[batch], own.forward, chunk)
            yield Pass("backward", s, batch, start.backward[batch], own.backward, chunk)
        for batch, at in enumerate(start.weights):
            yield Pass("weights", s, batch, at, own.weights, chunk)


def _once(chunk: StageSeconds) -> tuple[float, float]:
    return chunk.before, chunk.after


@dataclass(frozen=True)
class _Starts:
    """The start times of a chunk's passes in a step, by micro-batch."""

    before: float
    forward: Sequence[float]
    backward: Sequence[float]
    weights: Sequence[float] = ()
    """Empty if micro-batches have no pass for weights."""


def _flushed(
    chunks: Sequence[StageSeconds], micro_batches: int, kind: ScheduleKind, interleave: int
) -> list[_Starts]:
    ends = turn_ends(chunks, micro_batches, interleave, kind)

    def starts(number: int, way: TurnKind) -> list[float]:
        return [end - chunks[number].of(way) for end in ends[way][number]]

    return [
        _Starts(
            0.0,
            starts(number, "forward"),
            starts(number, "backward"),
            starts(number, "weights") if "weights" in ends else (),
        )
        for number in range(len(chunks))
    ]


def _steady(stages: Sequence[StageSeconds], micro_batches: int) -> list[_Starts]:
    leads = (2**power for power in count())
    return next(
        starts for lead in leads if (starts := _Steady(stages, micro_batches, lead).settled())
    )


@dataclass
class _Steady:
    """The turns of stages in a steady state, as early as possible.

    In turn i, a stage sends micro-batch ``i + ahead`` forward, and then i back. The numbers of
    micro-batches go on from step to step. A stage is ``lead`` turns ahead of the next one.
    """

    stages: Sequence[StageSeconds]
    turns: int
    lead: int
    forward: list[list[float]] = field(init=False)
    """By stage and turn, the start of the forward pass."""
    backward: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.period = step_seconds(self.stages, self.turns, "2bw")
        self.forward, self.backward = ([[0.0] * self.turns for _ in self.stages] for _ in range(2))

    def settled(self) -> list[_Starts] | None:
        """The start times; None if turns are put off again and again, so that steps take longer
        than their time."""
        order = range(len(self.stages))
        for _ in range(SWEEPS):
            check_time()
            changed = [self._put_off(s) for s in (*order, *reversed(order))]
            if not any(changed):
                return [self._starts(s) for s in order]
        return None

    def _put_off(self, s: int) -> bool:
        """Let the turns of a stage wait for their inputs. Returns whether any of them starts later
        than before."""
        stage, forward, backward = self.stages[s], self.forward[s], self.backward[s]
        is_later, least = False, ROUNDING * self.period
        clock = backward[-1] + stage.backward + stage.after - self.period
        for i in range(self.turns):
            first = (i + self._ahead(s)) % self.turns == 0
            start = max(clock + stage.before if first else clock, self._received(s, i))
            if start > forward[i] + least:
                forward[i], is_later = start, True
            start = max(forward[i] + stage.forward, self._returned(s, i))
            if start > backward[i] + least:
                backward[i], is_later = start, True
            clock = backward[i] + stage.backward
        return is_later

    def _ahead(self, s: int) -> int:
        return self.lead * (len(self.stages) - 1 - s)

    def _received(self, s: int, turn: int) -> float:
        """The time at which the previous stage has sent the input of a forward pass."""
        if not s:
            return 0.0
        return self._forward_at(s - 1, turn - self.lead) + self.stages[s - 1].forward

    def _returned(self, s: int, turn: int) -> float:
        """The time at which the next stage has sent the input of a backward pass."""
        if s == len(self.stages) - 1:
            return 0.0
        return self.backward[s + 1][turn] + self.stages[s + 1].backward

    def _forward_at(self, s: int, turn: int) -> float:
        """The start of the forward pass of a turn, in this step or another."""
        steps, turn = divmod(turn, self.turns)
        return self.forward[s][turn] + steps * self.period

    def _starts(self, s: int) -> _Starts:
        """The start times for the micro-batches of one step."""
        forward = [self._forward_at(s, batch - self._ahead(s)) for batch in range(self.turns)]
        return _Starts(forward[0] - self.stages[s].before, forward, self.backward[s])
