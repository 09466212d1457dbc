"""Stages are as even as possible: against every partition of short rows."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.pipeline import balance
from search.pipeline.balance import (
    Band,
    ChunkMemory,
    OperatorBytes,
    balanced,
    in_flight,
    sums,
)
from search.pipeline.cut_crossings import Crossing, CrossingSeconds

limits = st.floats(1.0, 20.0)
values = st.lists(st.floats(0.0, 8.0), min_size=1, max_size=7)


@st.composite
def rows(draw):
    """Seconds and bytes of operators in a row, and seconds of the tensors between them."""
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
    """The seconds of a stage, with receiving from earlier stages and sending to later ones."""
    total = sum(seconds[start:end])
    for c in crossings:
        comes = c.maker < start and any(start <= reader < end for reader in c.readers)
        goes = start <= c.maker < end and any(reader >= end for reader in c.readers)
        total += c.seconds * (comes + goes)
    return total


@settings(max_examples=30, deadline=None)
@given(rows())
def test_table_holds_the_seconds_of_each_stage(row):
    seconds, _, crossings = row
    every, crossing = Band(0, len(seconds)), CrossingSeconds(crossings)
    table = sums(seconds)(every, every) + crossing.received(every, every)
    table += crossing.sent(every, every)
    for start, end in combinations(range(len(seconds) + 1), 2):
        assert table[start, end] == pytest.approx(spent(start, end, seconds, crossings))
    assert np.isinf(table[np.tril_indices(len(table))]).all()


@settings(max_examples=30, deadline=None)
@given(rows(), st.data())
def test_part_of_the_table_equals_that_part_of_the_whole_table(row, data):
    """The parts are equal to the last bit: times of transfers are added up in the same order."""
    seconds, _, crossings = row
    places = st.integers(0, len(seconds))
    starts, ends = (Band(*sorted((data.draw(places), data.draw(places)))) for _ in range(2))
    every, crossing = Band(0, len(seconds)), CrossingSeconds(crossings)
    inside = np.ix_(starts.positions, ends.positions)
    for table in (sums(seconds), crossing.received, crossing.sent):
        assert (table(starts, ends) == table(every, every)[inside]).all()


def memory_of(weights, activations, stages: int, micro_batches: int, limit: float) -> ChunkMemory:
    flights = in_flight(stages, micro_batches)
    return ChunkMemory(
        (OperatorBytes(np.array(weights), np.array(activations)),), flights, (limit,)
    )


@pytest.mark.parametrize("few", [0, balance.FEW])
@settings(max_examples=60, deadline=None)
@given(row=rows(), stages=st.integers(1, 4), micro_batches=st.integers(1, 4), limit=limits)
def test_no_partition_is_more_even(few, row, stages, micro_batches, limit):
    """All stages are priced, or only those between bands, as in long rows."""
    seconds, memory, crossings = row
    count = len(seconds)
    own, crossing = sums(seconds), CrossingSeconds(crossings)
    holds = memory_of(memory, seconds, stages, micro_batches, limit)

    def table(stage: int, starts: Band, ends: Band):
        # Links between stages differ: here, receiving takes longer for later stages.
        comes, goes = crossing.received(starts, ends), crossing.sent(starts, ends)
        return own(starts, ends) + (1 + stage) * comes + goes

    def slowest(bounds: tuple[int, ...]) -> float:
        pairs = [(s, Band(a, a), Band(b, b)) for s, (a, b) in enumerate(pairwise(bounds))]
        if not all(holds.allowed(*pair)[0, 0] for pair in pairs):
            return np.inf
        return max(float(table(*pair)[0, 0]) for pair in pairs)

    every = [(0, *inner, count) for inner in combinations(range(1, count), stages - 1)]
    best = min((slowest(bounds) for bounds in every), default=np.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "FEW", few)
        if not few:  # Tables are made by parts too.
            patch.setattr(balance, "LARGEST", 1)
            patch.setattr(balance, "PART", 2)
        partition = balanced(table, seconds, stages, holds)
    if partition is None:
        assert best == np.inf
        return
    assert holds.bands is not None
    assert (partition[0], partition[-1], len(partition)) == (0, count, stages + 1)
    assert all(a < b for a, b in pairwise(partition))
    assert slowest(partition) == best


@settings(max_examples=40, deadline=None)
@given(rows(), st.integers(1, 4), st.integers(1, 4), limits)
def test_partition_is_found_exactly_if_some_partition_fits(row, stages, micro_batches, limit):
    """A row that cannot fit is reported before the search."""
    seconds, memory, _ = row
    holds = memory_of(memory, seconds, stages, micro_batches, limit)
    own, count = sums(seconds), len(seconds)
    every = [(0, *inner, count) for inner in combinations(range(1, count), stages - 1)]
    pairs = [[*enumerate(pairwise(bounds))] for bounds in every]
    fits = any(
        all(holds.allowed(s, Band(a, a), Band(b, b))[0, 0] for s, (a, b) in own) for own in pairs
    )
    partition = balanced(lambda _, a, b: own(a, b), seconds, stages, holds)
    assert (partition is not None) == fits
    assert holds.bands is not None or not fits


@settings(max_examples=40, deadline=None)
@given(rows(), st.integers(1, 4), st.integers(1, 4), limits)
def test_stages_that_fit_lie_in_the_bands_of_memory(row, stages, micro_batches, limit):
    seconds, memory, _ = row
    holds = memory_of(memory, seconds, stages, micro_batches, limit)
    count = len(seconds)
    for inner in combinations(range(1, count), stages - 1):
        bounds = (0, *inner, count)
        pairs = [(s, a, b) for s, (a, b) in enumerate(pairwise(bounds))]
        if not all(holds.allowed(s, Band(a, a), Band(b, b))[0, 0] for s, a, b in pairs):
            continue
        assert holds.bands is not None
        assert all(x.first <= at <= x.last for x, at in zip(holds.bands, bounds, strict=True))
        assert all(holds.first(s, b) <= a and b <= holds.last(s, a) for s, a, b in pairs)


@settings(max_examples=40, deadline=None)
@given(row=rows(), stages=st.integers(1, 5), micro_batches=st.integers(1, 4), limit=limits)
def test_equal_stages_share_their_tables(row, stages, micro_batches, limit):
    seconds, memory, crossings = row
    own, crossing, made = sums(seconds), CrossingSeconds(crossings), []
    holds = memory_of(memory, seconds, stages, micro_batches, limit)

    def table(_: int, starts: Band, ends: Band):
        made.append(starts)
        return own(starts, ends) + crossing.received(starts, ends) + crossing.sent(starts, ends)

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"FEW": 0, "LARGEST": 1, "PART": 2, "OVERLAP": 0}.items():
            patch.setattr(balance, name, value)
        patch.setattr(balance, "GREEDY_SLACK", ())
        apart = balanced(table, seconds, stages, holds)
        looks = len(made)
        assert balanced(table, seconds, stages, holds, lambda _: None) == apart
    assert len(made) - looks <= looks


def test_balancing_a_long_row_prices_few_of_its_stages():
    """The stages are those of the whole table."""
    seconds = np.random.default_rng(0).uniform(0.5, 1.5, 700)
    own, looked = sums(seconds), []

    def table(_: int, starts: Band, ends: Band):
        made = own(starts, ends)
        looked.append(made.size)
        return made

    partition = balanced(table, seconds, 8)
    assert sum(looked) < 8 * 100 * 100
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "FEW", len(seconds))
        assert balanced(table, seconds, 8) == partition


def test_no_partition_has_more_stages_than_operators():
    assert balanced(lambda _, a, b: sums([1.0, 2.0])(a, b), [1.0, 2.0], 3) is None
