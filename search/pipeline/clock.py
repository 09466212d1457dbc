"""Seconds of a step of a pipeline by its schedule: 1F1B, interleaved or not, ZB-H1, or
PipeDream-2BW.

In 1F1B, stages take turns as ``pcg.plan.pipeline`` says. Each turn waits for the previous chunk or,
on the way back, for the next one. All gradients are exchanged and all weights updated before the
next step begins. With p equal stages of v chunks each and m micro-batches, devices wait for (p - 1)
/ (v m) of the time for which they work. ZB-H1 (Qi et al., ICLR 2024) is 1F1B with separate passes
for weights, which wait for nothing but their turn. PipeDream-2BW (Narayanan et al., ICML 2021)
begins with the micro-batches of the next step without waiting for updates. Forward passes under way
still use the weights of one update before. So each stage holds two versions of weights, and a step
takes as long as its slowest stage works.

Of many micro-batches only some are followed. A round has as many micro-batches as there are stages.
Once all turns of ``STEADY`` consecutive rounds come equally much later than those of the round
before, so do all later rounds, since no turn waits for turns further back. Complexity: one look-up
for each turn that is followed. Exact up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pcg.plan.pipeline import ScheduleKind, TurnKind, has_weights_pass, turns

TurnEnds = dict[TurnKind, list[list[float]]]
"""The time at which each turn ends: by kind, number of the chunk, and micro-batch."""
STEADY = 3
"""No turn waits for turns of this many rounds before."""
DRAINING = 4
"""The number of last rounds whose order may differ."""
FIRST_ROUNDS = 1 + STEADY + DRAINING + 1
MORE_ROUNDS = 4
"""The factor by which more rounds are followed if they come to no steady state."""
ROUNDING = 1e-12
"""The fraction of a step below which two turns count as simultaneous."""

_SOURCE: Mapping[TurnKind, int] = {"forward": -1, "backward": 1, "weights": 0}
"""The offset of the chunk for which a turn waits; 0 if it waits for none."""
NEVER = -1.0
"""The end of a turn that has not been done yet."""
WEIGHT_VERSIONS: Mapping[ScheduleKind, int] = {"1f1b": 1, "2bw": 2, "zb-h1": 1}
"""The number of versions of its weights that a stage holds."""


@dataclass(frozen=True)
class StageSeconds:
    """The work of a stage, or of one of its chunks, in a step, in seconds. Transfers count at both
    of their ends."""

    forward: float
    """Of one micro-batch."""
    backward: float
    """Of one micro-batch, without its pass for weights if it has one."""
    before: float = 0.0
    """Once a step, before the first micro-batch: operators that read no samples."""
    after: float = 0.0
    """Once a step, after the last micro-batch: the exchange of gradients, and the update."""
    weights: float = 0.0
    """The pass for weights of one micro-batch, if it has one."""

    def busy(self, micro_batches: int) -> float:
        """All the work of a step."""
        each = self.forward + self.backward + self.weights
        return self.before + micro_batches * each + self.after

    def of(self, kind: TurnKind) -> float:
        """The seconds of one turn."""
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
    """Seconds of a step: until the last stage has updated its weights, or in the steady state of
    2BW. ``chunks``: in the order in which data flows; each stage has ``interleave`` of them."""
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
    """Seconds of each further round, if rounds follow each other evenly before the last ones, in
    which no new micro-batches begin; otherwise None."""
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
    """For each chunk, the ends of the turns that come last of a micro-batch."""
    return ends.get("weights", ends["backward"])


def _last(chunks: Sequence[StageSeconds], ends: TurnEnds, stages: int) -> float:
    """The time at which the last stage has updated its weights."""
    after = [sum(chunk.after for chunk in chunks[s::stages]) for s in range(stages)]
    last = _closing(ends)
    return max(last[s][-1] + after[s] for s in range(stages))


def flush_ends(
    chunks: Sequence[StageSeconds], micro_batches: int, interleave: int = 1
) -> list[float]:
    """The time at which each stage has done its last backward pass, by 1F1B."""
    ends = turn_ends(chunks, micro_batches, interleave)
    return [ends["backward"][number][-1] for number in range(len(chunks) // interleave)]


def turn_ends(
    chunks: Sequence[StageSeconds],
    micro_batches: int,
    interleave: int = 1,
    kind: ScheduleKind = "1f1b",
) -> TurnEnds:
    """The end of each turn by 1F1B or ZB-H1."""
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
