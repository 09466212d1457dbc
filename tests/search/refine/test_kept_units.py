"""Units that are kept: the plan still fits, in less time, and no further unit can be kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from pcg.graph.graph import Node
from pcg.plan.text import parse_graph
from search.cost.units import RecomputedNodes, Unit, union
from search.refine.kept_units import KeptUnits

TIMES = 4
ENOUGH = 1000
ITEMSIZE = 2
OPERATORS: Sequence[Node] = parse_graph(
    "x0 = input[4]\n"
    + "\n".join(f"x{n + 1} = relu(x{n})" for n in range(7))
    + "\nreturn sum_loss(x7)"
).operators[:7]
"""Each is the one that recomputes a unit."""


class Spans:
    """Tensors that are held for some time, unless they are recomputed."""

    def __init__(self, units: Sequence[Unit], spans: Sequence[tuple[int, int]]) -> None:
        self.units, self.spans, self.counts = units, spans, 0

    def counted(self, nodes: RecomputedNodes) -> int:
        self.counts += 1
        kept = [
            (unit.bytes * ITEMSIZE, *span)
            for unit, span in zip(self.units, self.spans, strict=True)
            if not unit.nodes <= nodes
        ]
        return max(sum(b for b, a, z in kept if a <= time <= z) for time in range(TIMES))


@st.composite
def problems(draw: DrawFn) -> tuple[Spans, int]:
    """Units that are held at different times, and a limit of bytes that all can meet."""
    times = st.integers(0, TIMES - 1)
    units, spans = list[Unit](), list[tuple[int, int]]()
    for at, node in enumerate(OPERATORS):
        size, seconds = draw(st.integers(1, 9)), draw(st.integers(0, 9))
        units.append(Unit(frozenset({node}), size, float(seconds), True, False, at))
        first, last = sorted((draw(times), draw(times)))
        spans.append((first, last))
    made = Spans(units, spans)
    return made, draw(st.integers(0, made.counted(frozenset())))


def fitting(problem: Spans, limit: int) -> tuple[list[Unit], tuple[Unit, ...]]:
    """All units in descending worth, and the first of them with which the plan fits."""
    units = sorted(problem.units, key=lambda unit: -unit.worth)
    sizes = range(len(units) + 1)
    return units, next(
        taken for n in sizes if problem.counted(union(taken := tuple(units[:n]))) <= limit
    )


def seconds(units: Sequence[Unit]) -> float:
    return sum(unit.seconds for unit in units)


@given(problems())
def test_the_plan_fits_in_no_more_time_and_no_unit_can_be_dropped(given_problem):
    problem, limit = given_problem
    units, before = fitting(problem, limit)
    after = KeptUnits(units, problem.counted, limit, ITEMSIZE, ENOUGH).fewer(before)
    assert problem.counted(union(after)) <= limit
    assert seconds(after) <= seconds(before)
    assert len(set(after)) == len(after)
    if set(after) <= set(before):  # an exchange may leave room, and is the last change
        for unit in after:
            rest = union(other for other in after if other is not unit)
            assert problem.counted(rest) > limit
    every = (c for n in range(len(units) + 1) for c in combinations(units, n))
    best = min(seconds(c) for c in every if problem.counted(union(c)) <= limit)
    assert best <= seconds(after)


@given(problems(), st.integers(0, 10))
def test_no_more_is_counted_than_may_be(given_problem, most):
    problem, limit = given_problem
    units, before = fitting(problem, limit)
    problem.counts = 0
    after = KeptUnits(units, problem.counted, limit, ITEMSIZE, most).fewer(before)
    assert problem.counts <= most
    assert problem.counted(union(after)) <= limit


def test_one_large_unit_takes_the_place_of_many_and_idle_ones_are_kept():
    """The first is not held when most is. The second is large and slow, the third fast and nearly
    as large."""
    idle, large, fast = (
        Unit(frozenset({node}), size, time, True, False, at)
        for at, (node, size, time) in enumerate(
            zip(OPERATORS, (9, 10, 8), (1.0, 8.0, 7.0), strict=False)
        )
    )
    problem = Spans([idle, large, fast], [(0, 0), (1, 1), (1, 1)])
    kept = KeptUnits([idle, large, fast], problem.counted, 20, ITEMSIZE, ENOUGH)
    assert kept.fewer((idle, large)) == (fast,)
