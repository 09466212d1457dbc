"""Variable elimination against trying every choice."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from search.mesh.factors import Factor, kept, least, restricted


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
def test_it_finds_the_least_sum_and_a_choice_that_has_it(problem):
    sizes, factors = problem
    found, choice = least(sizes, factors)
    every = product(*(range(size) for size in sizes))
    assert found == min(total(factors, c) for c in every)
    assert total(factors, tuple(choice)) == found


@given(sums())
def test_a_choice_among_fewer_values_is_one_among_all(problem):
    sizes, factors = problem
    values = kept(sizes, factors, 2)
    fewer = restricted(factors, values)
    found, choice = least([len(v) for v in values], fewer)
    back = tuple(int(values[v][c]) for v, c in enumerate(choice))
    assert total(factors, back) == found >= least(sizes, factors)[0]
