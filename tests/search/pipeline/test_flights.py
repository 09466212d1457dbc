"""The micro-batches that stages hold at each time."""

from __future__ import annotations

from itertools import product

from pcg.plan.pipeline import turns, under_way
from search.pipeline.flights import Flight, flights


def test_micro_batches_in_flight_are_those_of_all_turns():
    """Also with many rounds, of which only a few are followed."""
    cases = [
        (stages, micro_batches, interleave)
        for stages in range(1, 5)
        for micro_batches in (*range(1, 14), 37, 40)
        for interleave in range(1, 4)
    ]
    for stages, micro_batches, interleave in cases:
        for stage in range(stages):
            told = flights(stage, stages, micro_batches, interleave)
            held, every = [0] * interleave, set[Flight]()
            for kind, _, chunk in turns(stage, stages, micro_batches, interleave):
                held[chunk] -= kind == "backward"
                every.add(Flight(chunk, tuple(held)))
                held[chunk] += kind == "forward"
            if interleave > 1:
                assert set(told) == every
            most = max(sum(one.waiting) + 1 for one in told)
            assert most == under_way(stage, stages, micro_batches, interleave)


def test_micro_batches_in_flight_by_zb_h1_are_those_of_all_turns():
    for stages, micro_batches in product(range(1, 7), (*range(1, 14), 37, 40)):
        for stage in range(stages):
            told = flights(stage, stages, micro_batches, kind="zb-h1")
            held, left, every = 0, 0, set[Flight]()
            for kind, _, _ in turns(stage, stages, micro_batches, kind="zb-h1"):
                held -= kind == "backward"
                left -= kind == "weights"
                if kind != "weights":
                    every.add(Flight(0, (held,), (left,)))
                held += kind == "forward"
                left += kind == "backward"
            assert set(told) == every
            most = max(one.waiting[0] + one.left[0] + 1 for one in told)
            assert most == under_way(0, stages, micro_batches)
