"""Variable elimination, against trying everything."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.backtracking.elimination import Elimination, Table

tables = st.lists(
    st.tuples(st.sets(st.integers(0, 5), max_size=3), st.integers(0, 1000)), max_size=8
)


def random_tables(drawn) -> tuple[list[Table], list[int]]:
    sizes = [2, 3, 1, 2, 3, 2]
    made: list[Table] = []
    for variables, seed in drawn:
        shape = (2, *(sizes[v] for v in sorted(variables)))
        seconds = np.random.default_rng(seed).integers(0, 9, shape).astype(float)
        made.append(Table(tuple(sorted(variables)), seconds))
    every = [Table((v,), np.zeros((2, size))) for v, size in enumerate(sizes)]
    return made + every, sizes


def value_of(made: list[Table], chosen) -> float:
    return sum(float(t.seconds[(0, *(chosen[v] for v in t.variables))]) for t in made)


@given(tables, st.booleans())
@settings(deadline=None)
def test_elimination_finds_the_minimum(drawn, smallest_first: bool):
    made, sizes = random_tables(drawn)
    elimination = Elimination(made, range(1, 6))
    if smallest_first:
        elimination.run_smallest_first()
    else:
        elimination.run()
    rest = elimination.rest()
    assert rest.variables == (0,)
    for first in range(sizes[0]):
        chosen = {0: first}
        for decision in reversed(elimination.decisions):
            chosen[decision.variable] = decision.choose(chosen)
        others = product(*(range(size) for size in sizes[1:]))
        best = min(value_of(made, (first, *other)) for other in others)
        assert value_of(made, chosen) == rest.seconds[0, first] == best


@given(tables)
@settings(deadline=None)
def test_elimination_stays_small(drawn):
    made, _ = random_tables(drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("search.backtracking.elimination.FEW", 2)
        patch.setattr("search.backtracking.elimination.MAX_ENTRIES", 4)
        elimination = Elimination(made, range(6))
        elimination.run_smallest_first()
    chosen: dict[int, int] = {}
    for decision in reversed(elimination.decisions):
        chosen[decision.variable] = decision.choose(chosen)
    assert value_of(made, chosen) == elimination.rest().seconds[0]
