"""The numbers of micro-batches that the chunks of a stage hold, at each time when bytes may be
most.

Problem: a stage holds most bytes at some turn of its order, and there are as many turns as
micro-batches, passes for weights included. Method: while rounds of micro-batches follow each other,
the numbers of micro-batches under way, by chunk, repeat. So a few rounds are enough, and each state
is listed once. Exact; tests compare it with all turns. Complexity: the turns of a few rounds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from pcg.plan.pipeline import ScheduleKind, has_weights_pass, turns, under_way

ROUNDS = 4
"""After this many equal rounds no new state comes."""


class Flight(NamedTuple):
    """A turn forward or back: the chunk at work, and for each chunk the number of micro-batches
    that wait for their backward pass. In a pass for weights no more is held than in the backward
    pass before it."""

    working: int
    waiting: tuple[int, ...]
    left: tuple[int, ...] = ()
    """For each chunk, the number of micro-batches that wait for their pass for weights, if they
    have one."""


@lru_cache(maxsize=4096)
def flights(
    stage: int,
    stages: int,
    micro_batches: int,
    interleave: int = 1,
    kind: ScheduleKind = "1f1b",
) -> tuple[Flight, ...]:
    """All flights of a stage, which is numbered from 0; for one chunk without a pass for weights,
    only the turn when most micro-batches wait."""
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
