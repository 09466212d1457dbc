"""Variable elimination, against trying every choice."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.map.choose.factors import (
    FEW_PICKED,
    Factor,
    PairTable,
    _Elimination,
    least,
    restricted,
)


@st.composite
def sums(draw: st.DrawFn) -> tuple[list[int], list[Factor]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scopes = st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=3)
    factors = [
        Factor(scope, rng.integers(0, 50, [sizes[v] for v in scope]).astype(float))
        for scope in (tuple(sorted(s)) for s in draw(st.lists(scopes, max_size=6)))
    ]
    return sizes, factors


def total(factors: list[Factor], choice: tuple[int, ...]) -> float:
    return sum(float(f.values[tuple(choice[v] for v in f.variables)]) for f in factors)


@given(sums())
def test_elimination_finds_the_least_sum_and_its_choice(problem):
    sizes, factors = problem
    minimum, choice = least(sizes, factors)
    every = product(*(range(size) for size in sizes))
    assert minimum == pytest.approx(min(total(factors, c) for c in every))
    assert total(factors, tuple(choice)) == pytest.approx(minimum)


@given(sums())
def test_a_choice_among_fewer_values_is_one_among_all(problem):
    sizes, factors = problem
    values = [np.arange(size)[-2:] for size in sizes]
    fewer = restricted(factors, values)
    minimum, choice = least([len(v) for v in values], fewer)
    back = tuple(int(values[v][c]) for v, c in enumerate(choice))
    assert total(factors, back) == pytest.approx(minimum)
    assert minimum >= least(sizes, factors)[0] - 1e-9


@given(st.integers(0, 2**32 - 1), st.integers(0, 1), st.booleans())
def test_the_least_entries_of_a_pair_table_are_those_of_its_factor(seed, axis, is_forth):
    rng = np.random.default_rng(seed)
    table = PairTable.of(rng.random(rng.integers(1, 5, 2), np.float32))
    factor = table.factor(*((0, 1) if is_forth else (1, 0)), 1.0)
    expected = factor.values.min(axis=1 - axis).astype(np.float64)
    assert np.array_equal(factor.least(axis), expected)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_restricted_tables_hold_the_values_at_the_places(seed: int, is_transposed: bool):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 2 * FEW_PICKED, 2).tolist()
    values = rng.random(sizes)
    table = np.ascontiguousarray(values.T).T if is_transposed else values
    places = [np.sort(rng.permutation(size)[: rng.integers(1, size + 1)]) for size in sizes]
    (fewer,) = restricted([Factor((0, 1), table)], places)
    assert np.array_equal(fewer.values, values[np.ix_(*places)])


def chain(blocks: int) -> tuple[list[int], list[Factor]]:
    """Equal blocks in a row, each a variable that depends on the one before."""
    rng = np.random.default_rng(0)
    own, edge = rng.random(8), rng.random((8, 8))
    factors = [Factor((v,), own) for v in range(blocks)]
    factors += [Factor((v, v + 1), edge) for v in range(blocks - 1)]
    return [8] * blocks, factors


def test_blocks_that_are_alike_are_added_up_once():
    """Beyond a few blocks, further blocks need no further sums."""
    made: list[int] = []
    for blocks in (50, 200):
        elimination = _Elimination(*chain(blocks))
        elimination.run()
        made.append(len(elimination._sums))
    assert made[0] == made[1] < 50


def test_any_number_of_settled_variables():
    """numpy has 64 axes at most. Settled variables need none."""
    count = 100
    star = [Factor((0, v), np.array([[float(v)], [0.0]])) for v in range(1, count)]
    minimum, choice = least([2] + [1] * (count - 1), star)
    assert (minimum, choice[0]) == (0.0, 1)
