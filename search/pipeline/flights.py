"""How many micro-batches the chunks of a stage hold, at each time when that may be most.

Problem: bytes on a stage are most at some turn of its order, and there are as many turns as
micro-batches. Where micro-batches have a pass for weights, it is a turn too. Method: what is under
way by chunk is the same again and again while rounds of micro-batches follow one another, so of
many rounds a few tell all, and each state is told once. Exact, which tests compare with all turns.
Complexity: the turns of a few rounds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from pcg.plan.pipeline import ScheduleKind, has_weights_pass, turns, under_way

ROUNDS = 4
"""After so many rounds alike nothing new comes."""


class Flight(NamedTuple):
    """A turn forward or back: the chunk at work, and how many micro-batches wait, by chunk, for
    their backward pass or their pass for weights. In a pass for weights no more is held than in the
    backward pass before it."""

    working: int
    waiting: tuple[int, ...]
    left: tuple[int, ...] = ()
    """How many wait for their pass for weights, where they have one."""


@lru_cache(maxsize=4096)
def flights(
    stage: int,
    stages: int,
    micro_batches: int,
    interleave: int = 1,
    kind: ScheduleKind = "1f1b",
) -> tuple[Flight, ...]:
    """All of a stage (from 0); of one chunk without a pass for weights, the turn when most wait."""
    if has_weights_pass(kind):
        return _with_weights(stage, stages, micro_batches, kind)
    if interleave == 1:
        return (Flight(0, (under_way(stage, stages, micro_batches) - 1,)),)
    longer = micro_batches % stages
    fewer = min(micro_batches, (longer + ROUNDS) * stages + longer)
    held = [0] * interleave
    order: dict[Flight, None] = {}
    for turn, _, chunk in turns(stage, stages, fewer, interleave):
        if turn == "backward":
            held[chunk] -= 1
        order[Flight(chunk, tuple(held))] = None
        if turn == "forward":
            held[chunk] += 1
    return tuple(order)


def _with_weights(
    stage: int, stages: int, micro_batches: int, kind: ScheduleKind
) -> tuple[Flight, ...]:
    fewer = min(micro_batches, (1 + ROUNDS) * stages)
    held, left = 0, 0
    order: dict[Flight, None] = {}
    for turn, _, _ in turns(stage, stages, fewer, 1, kind):
        if turn == "weights":
            left -= 1
            continue
        held -= turn == "backward"
        order[Flight(0, (held,), (left,))] = None
        held += turn == "forward"
        left += turn == "backward"
    return tuple(order)
