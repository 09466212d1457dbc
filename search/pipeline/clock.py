"""Seconds of a step of a pipeline by its schedule: 1F1B, interleaved or not, ZB-H1, or
PipeDream-2BW.

By 1F1B stages take turns as ``pcg.plan.pipeline`` says, each of which waits for the chunk before
or, on the way back, the one after it. All gradients are exchanged and weights updated before the
next step begins. Of p equal stages with v chunks each, devices wait for (p - 1) / (v m) of the time
for which they work on m micro-batches. ZB-H1 (Qi et al., ICLR 2024) is 1F1B with passes for weights
of their own, which wait for nothing but their turn. PipeDream-2BW (Narayanan et al., ICML 2021)
takes the next step's micro-batches without waiting for updates: the forward passes under way still
use the weights of one update before, so that each stage holds two versions, and a step takes as
long as its slowest stage works.

Of many micro-batches only some are followed: once all turns of ``STEADY`` rounds in a row, of as
many micro-batches as there are stages, come as much later as those of the round before, all later
rounds do, as nothing waits for what is longer ago. Complexity: one look-up for each turn of each
stage that is followed. Exact up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pcg.plan.pipeline import ScheduleKind, TurnKind, has_weights_pass, turns

TurnEnds = dict[TurnKind, list[list[float]]]
"""When turns are done: by kind, number of the chunk, and micro-batch."""
STEADY = 3
"""So many rounds long ago nothing waits for."""
DRAINING = 4
"""In so many last rounds the order may be another."""
FIRST_ROUNDS = 1 + STEADY + DRAINING + 1
MORE_ROUNDS = 4
"""By what factor more are followed where so many do not come to a steady state."""
ROUNDING = 1e-12
"""Of a step: turns that differ by as little come at the same time."""

_SOURCE: Mapping[TurnKind, int] = {"forward": -1, "backward": 1, "weights": 0}
"""How many chunks on is the one that a turn waits for; none, where that is 0."""
NEVER = -1.0
"""When what has not been done yet is done."""
WEIGHT_VERSIONS: Mapping[ScheduleKind, int] = {"1f1b": 1, "2bw": 2, "zb-h1": 1}
"""How many versions of its weights a stage holds."""


@dataclass(frozen=True)
class StageSeconds:
    """What a stage does in a step, or one of its chunks, in seconds; transfers count at both of
    their ends."""

    forward: float
    """One micro-batch."""
    backward: float
    """One micro-batch; without its pass for weights, where it has one."""
    before: float = 0.0
    """Once a step, before the first micro-batch: what reads no samples."""
    after: float = 0.0
    """Once a step, after the last one: the exchange of gradients, and the update."""
    weights: float = 0.0
    """The pass for weights of one micro-batch, where it has one."""

    def busy(self, micro_batches: int) -> float:
        """All its work of a step."""
        each = self.forward + self.backward + self.weights
        return self.before + micro_batches * each + self.after

    def of(self, kind: TurnKind) -> float:
        """A turn."""
        match kind:
            case "forward":
                return self.forward
            case "backward":
                return self.backward
            case "weights":
                return self.weights


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
        ends = turn_ends(chunks, followed * stages + more, interleave, kind)
        each = _steady(ends, stages)
        if each is not None:
            return _last(chunks, ends, stages) + (rounds - followed) * each
        followed *= MORE_ROUNDS
    return _last(chunks, turn_ends(chunks, micro_batches, interleave, kind), stages)


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
    end = max(own[-1] for own in _closing(ends))
    return most if most - least <= ROUNDING * end else None


def _closing(ends: TurnEnds) -> list[list[float]]:
    """By chunk, when the turns are done that come last of a micro-batch."""
    return ends.get("weights", ends["backward"])


def _last(chunks: Sequence[StageSeconds], ends: TurnEnds, stages: int) -> float:
    """When the last stage has updated its weights."""
    after = [sum(chunk.after for chunk in chunks[s::stages]) for s in range(stages)]
    last = _closing(ends)
    return max(last[s][-1] + after[s] for s in range(stages))


def flush_ends(
    chunks: Sequence[StageSeconds], micro_batches: int, interleave: int = 1
) -> list[float]:
    """When each stage has done its last backward pass, by 1F1B."""
    ends = turn_ends(chunks, micro_batches, interleave)
    return [ends["backward"][number][-1] for number in range(len(chunks) // interleave)]


def turn_ends(
    chunks: Sequence[StageSeconds],
    micro_batches: int,
    interleave: int = 1,
    kind: ScheduleKind = "1f1b",
) -> TurnEnds:
    """When each turn is done by 1F1B or ZB-H1."""
    count, last = len(chunks) // interleave, len(chunks) - 1
    ways: tuple[TurnKind, ...] = "forward", "backward"
    if has_weights_pass(kind):
        ways = *ways, "weights"
    done: TurnEnds = {way: [[NEVER] * micro_batches for _ in chunks] for way in ways}
    left = [turns(s, count, micro_batches, interleave, kind) for s in range(count)]
    following = [next(own, None) for own in left]
    clocks = [sum(chunk.before for chunk in chunks[s::count]) for s in range(count)]
    ready = list(range(count))
    while ready:
        ready = [s for s in ready if (turn := following[s]) is not None]
        moved = False
        for s in ready:
            while (turn := following[s]) is not None:
                way, batch, chunk = turn
                number = chunk * count + s
                source = number + _SOURCE[way]
                waits = done[way][source][batch] if _SOURCE[way] and 0 <= source <= last else 0.0
                if waits == NEVER:
                    break
                clocks[s] = max(clocks[s], waits) + chunks[number].of(way)
                done[way][number][batch] = clocks[s]
                following[s], moved = next(left[s], None), True
        assert moved or not ready, "1F1B never waits in turn"
    return done
