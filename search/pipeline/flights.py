"""How many micro-batches the chunks of a stage hold, at each time when that may be most.

Problem: bytes on a stage are most at some turn of its order, and there are as many turns as
micro-batches. Method: what is under way by chunk is the same again and again while rounds of
micro-batches follow one another, so of many rounds a few tell all, and each state is told once.
Exact, which tests compare with all turns. Complexity: the turns of a few rounds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from pcg.plan.pipeline import turns, under_way

ROUNDS = 4
"""After so many rounds alike nothing new comes."""


class Flight(NamedTuple):
    """A turn: the chunk at work, and how many micro-batches wait, by chunk."""

    working: int
    waiting: tuple[int, ...]


@lru_cache(maxsize=4096)
def flights(stage: int, stages: int, micro_batches: int, interleave: int = 1) -> tuple[Flight, ...]:
    """All of a stage (from 0); of one chunk, the turn when most wait."""
    if interleave == 1:
        return (Flight(0, (under_way(stage, stages, micro_batches) - 1,)),)
    longer = micro_batches % stages
    fewer = min(micro_batches, (longer + ROUNDS) * stages + longer)
    held = [0] * interleave
    found: dict[Flight, None] = {}
    for is_forward, _, chunk in turns(stage, stages, fewer, interleave):
        if not is_forward:
            held[chunk] -= 1
        found[Flight(chunk, tuple(held))] = None
        if is_forward:
            held[chunk] += 1
    return tuple(found)
