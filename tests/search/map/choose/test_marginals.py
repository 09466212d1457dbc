"""Message passing keeps the values that make up the least sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.map.choose.factors import Factor, least, restricted
from search.map.choose.marginals import FEW_ENTRIES, considered_values, promising

Sum = tuple[list[int], list[Factor]]


@st.composite
def sums(draw: st.DrawFn, *, chain: bool = False) -> Sum:
    """Tables of one variable and of pairs, with impossible entries."""
    count = draw(st.integers(2, 6))
    sizes = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    pairs = {(v - 1 if chain else draw(st.integers(0, v - 1)), v) for v in range(1, count)}
    for _ in range(0 if chain else 3):
        a, b = sorted(draw(st.permutations(range(count)))[:2])
        pairs.add((a, b))
    factors = [Factor((v,), numbers.random(size)) for v, size in enumerate(sizes)]
    for a, b in sorted(pairs):
        table = numbers.random((sizes[a], sizes[b]))
        table[1:, 1:][numbers.random(table[1:, 1:].shape) < 0.3] = np.inf
        factors.append(Factor((a, b), table))
    return sizes, factors


@given(sums(chain=True))
def test_one_value_of_each_variable_is_enough_on_a_chain(problem: Sum):
    """On a chain, one pass there and back is exact. With branches it is not."""
    sizes, factors = problem
    values = promising(sizes, factors, 1)
    minimum, _ = least([len(v) for v in values], restricted(factors, values))
    assert minimum == pytest.approx(least(sizes, factors)[0])


@given(sums(), st.integers(1, 3))
def test_restricted_values_are_few_and_hold_a_full_choice(problem: Sum, most: int):
    sizes, factors = problem
    values = promising(sizes, factors, most)
    assert all(len(v) <= most + 1 for v in values)
    minimum, choice = least([len(v) for v in values], restricted(factors, values))
    assert minimum >= least(sizes, factors)[0] - 1e-9
    assert len(choice) == len(sizes)


@given(sums())
def test_no_value_is_left_out_if_all_are_asked_for(problem: Sum):
    sizes, factors = problem
    assert [len(v) for v in promising(sizes, factors, max(sizes))] == sizes


def grid(side: int, size: int) -> Sum:
    """Variables that meet their neighbours on a grid, so that tables grow with its side."""
    numbers = np.random.default_rng(0)
    number = {(x, y): side * x + y for x in range(side) for y in range(side)}
    pairs = [(v, number[x + 1, y]) for (x, y), v in number.items() if x + 1 < side]
    pairs += [(v, number[x, y + 1]) for (x, y), v in number.items() if y + 1 < side]
    factors = [Factor((v,), numbers.random(size)) for v in range(side * side)]
    factors += [Factor(pair, numbers.random((size, size))) for pair in pairs]
    return [size] * (side * side), factors


def test_small_tables_are_looked_at_whole():
    sizes, factors = grid(2, 20)
    assert [len(v) for v in considered_values(sizes, factors)] == sizes


def test_few_values_of_large_tables_come_within_2_percent_of_the_least():
    sizes, factors = grid(3, 30)
    assert FEW_ENTRIES < 30**3
    some = considered_values(sizes, factors, 8)
    assert max(map(len, some)) <= 9
    minimum, _ = least([len(v) for v in some], restricted(factors, some))
    assert minimum == pytest.approx(least(sizes, factors)[0], rel=0.02)


@pytest.mark.parametrize("rank", [0, 100, 199])
def test_best_value_is_found_though_dear_by_itself(rank: int):
    """All values but one are cheap beside a value of the other variable that is dear itself. So by
    its least sum the best value comes no earlier than by its own cost."""
    size = 800
    alone = np.arange(size, dtype=float) / size
    beside = np.zeros((2, size))
    beside[1] = 10.0
    beside[:, rank] = 10.0, 0.0
    factors = [Factor((0,), np.array([10.0, 0.0])), Factor((1,), alone), Factor((0, 1), beside)]
    assert least([2, size], factors)[1] == [1, rank]
    assert rank in promising([2, size], factors, 1)[1]
