"""What stages hold at each time."""

from __future__ import annotations

from pcg.plan.pipeline import turns, under_way
from search.pipeline.flights import flights


def test_what_is_told_is_what_all_turns_have():
    """Also of many rounds, of which only a few are gone through."""
    cases = [
        (stages, micro_batches, interleave)
        for stages in range(1, 5)
        for micro_batches in (*range(1, 14), 37, 40)
        for interleave in range(1, 4)
    ]
    for stages, micro_batches, interleave in cases:
        for stage in range(stages):
            told = flights(stage, stages, micro_batches, interleave)
            held, every = [0] * interleave, set[tuple[int, tuple[int, ...]]]()
            for forward, _, chunk in turns(stage, stages, micro_batches, interleave):
                held[chunk] -= not forward
                every.add((chunk, tuple(held)))
                held[chunk] += forward
            if interleave > 1:
                assert set(told) == every
            most = max(sum(one.waiting) + 1 for one in told)
            assert most == under_way(stage, stages, micro_batches, interleave)
