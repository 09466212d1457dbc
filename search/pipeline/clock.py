"""Seconds of a step of a pipeline by its schedule, 1F1B or PipeDream-2BW.

1F1B (PipeDream-Flush: Narayanan et al., ICML 2021): stage s of S sends S - s - 1 micro-batches
forward, then turns between one forward and one backward, and ends with the backward passes that
are left. All gradients are exchanged and weights updated before the next step begins. PipeDream-2BW
(the same paper) takes the next step's micro-batches without waiting for that: the forward passes
under way still use the weights of one update before, so that each stage holds two versions, and a
step takes as long as its slowest stage works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pcg.plan.pipeline import turns

ScheduleKind = Literal["1f1b", "2bw"]

WEIGHT_VERSIONS = {"1f1b": 1, "2bw": 2}
"""How many versions of its weights a stage holds."""


@dataclass(frozen=True)
class StageSeconds:
    """What a stage does in a step, in seconds; transfers count at both of their ends."""

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


def in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """How many micro-batches a stage (from 0) holds at most: those that it has sent forward and not
    yet back."""
    return min(micro_batches, stages - stage)


def step_seconds(
    stages: Sequence[StageSeconds], micro_batches: int, kind: ScheduleKind = "1f1b"
) -> float:
    """Seconds of a step: until the last stage has updated its weights, or in 2BW's steady state."""
    if kind == "2bw":
        return max(stage.busy(micro_batches) for stage in stages)
    return max(
        end + s.after for end, s in zip(flush_ends(stages, micro_batches), stages, strict=True)
    )


def flush_ends(stages: Sequence[StageSeconds], micro_batches: int) -> list[float]:
    """When each stage has done its last backward pass, by 1F1B."""
    ends = turn_ends(stages, micro_batches)
    return [ends[s, False, micro_batches - 1] for s in range(len(stages))]


def turn_ends(
    stages: Sequence[StageSeconds], micro_batches: int
) -> dict[tuple[int, bool, int], float]:
    """When each stage has done each of its turns by 1F1B: (stage, whether forward, which
    micro-batch)."""
    count = len(stages)
    order = [list(turns(s, count, micro_batches)) for s in range(count)]
    done: dict[tuple[int, bool, int], float] = {}
    clocks = [stage.before for stage in stages]
    at = [0] * count
    moved = True
    while moved:
        moved = False
        for s, stage in enumerate(stages):
            while at[s] < len(order[s]):
                forward, batch = order[s][at[s]]
                source = s - 1 if forward else s + 1
                waits = 0.0
                if 0 <= source < count:
                    if (source, forward, batch) not in done:
                        break
                    waits = done[source, forward, batch]
                seconds = stage.forward if forward else stage.backward
                clocks[s] = done[s, forward, batch] = max(clocks[s], waits) + seconds
                at[s] += 1
                moved = True
    assert all(n == len(own) for n, own in zip(at, order, strict=True)), "1F1B never waits in turn"
    return done
