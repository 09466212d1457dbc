"""Stages are as even as they can be: against every partition of short rows."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.pipeline.balance import Crossing, balanced, crossing_seconds, fits, sums

values = st.lists(st.floats(0.0, 8.0), min_size=1, max_size=7)


@st.composite
def rows(draw):
    """Seconds and bytes of operators in a row, and tensors between them."""
    seconds = draw(values)
    count = len(seconds)
    memory = draw(st.lists(st.floats(0.0, 4.0), min_size=count, max_size=count))
    crossings: list[Crossing] = []
    for maker in range(count - 1):
        later = st.integers(maker + 1, count - 1)
        readers = draw(st.lists(later, max_size=3, unique=True).map(sorted))
        if readers:
            crossings.append(Crossing(maker, tuple(readers), draw(st.floats(0.0, 3.0))))
    return seconds, memory, crossings


def spent(start: int, end: int, seconds: list[float], crossings: list[Crossing]) -> float:
    """A stage's own seconds, with what it gets from stages before and gives to later ones."""
    total = sum(seconds[start:end])
    for c in crossings:
        comes = c.maker < start and any(start <= reader < end for reader in c.readers)
        goes = start <= c.maker < end and any(reader >= end for reader in c.readers)
        total += c.seconds * (comes + goes)
    return total


@settings(max_examples=30, deadline=None)
@given(rows())
def test_the_table_has_what_each_stage_spends(row):
    seconds, _, crossings = row
    comes, goes = crossing_seconds(len(seconds), crossings)
    table = sums(seconds) + comes + goes
    for start, end in combinations(range(len(seconds) + 1), 2):
        assert table[start, end] == pytest.approx(spent(start, end, seconds, crossings))
    assert np.isinf(table[np.tril_indices(len(table))]).all()


@settings(max_examples=40, deadline=None)
@given(rows(), st.integers(1, 4), st.integers(1, 4), st.floats(1.0, 20.0))
def test_no_partition_is_more_even(row, stages, micro_batches, limit):
    seconds, memory, crossings = row
    count = len(seconds)
    comes, goes = crossing_seconds(count, crossings)
    # Links between stages differ: here, what comes takes longer the later the stage.
    tables = [sums(seconds) + (1 + stage) * comes + goes for stage in range(stages)]
    weights, activations = sums(memory), sums(seconds)
    allowed = fits(weights, activations, limit, stages, micro_batches)

    def slowest(bounds: tuple[int, ...]) -> float:
        for stage, (start, end) in enumerate(pairwise(bounds)):
            flying = min(micro_batches, stages - stage)
            if weights[start, end] + flying * activations[start, end] > limit:
                return np.inf
        return max(float(tables[s][pair]) for s, pair in enumerate(pairwise(bounds)))

    every = [(0, *inner, count) for inner in combinations(range(1, count), stages - 1)]
    best = min((slowest(bounds) for bounds in every), default=np.inf)
    found = balanced(lambda stage: tables[stage], stages, allowed)
    if found is None:
        assert best == np.inf
        return
    assert (found[0], found[-1], len(found)) == (0, count, stages + 1)
    assert all(a < b for a, b in pairwise(found))
    assert slowest(found) == best


def test_more_stages_than_operators_are_none():
    assert balanced(lambda _: sums([1.0, 2.0]), 3) is None
