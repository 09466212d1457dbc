"""Backtracking over states that are numbers, with random costs and edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from search.substitute.backtrack import (
    BacktrackLimits,
    BacktrackResult,
    RewriteCandidate,
    backtrack,
)


@dataclass(frozen=True)
class Drawn:
    """States 0, 1, ...: the cost of each, its estimate, and its edges."""

    costs: Sequence[float]
    estimates: Sequence[float]
    edges: Sequence[Sequence[int]]

    def search(self, extent: BacktrackLimits) -> BacktrackResult[int]:
        known = {0}

        def made(state: int) -> int | None:
            if state in known:
                return None
            known.add(state)
            return state

        def candidates(state: int) -> Iterator[RewriteCandidate[int]]:
            for other in self.edges[state]:
                yield RewriteCandidate(self.estimates[other], lambda other=other: made(other))

        return backtrack(0, self.costs.__getitem__, candidates, extent)

    def reached(self, at_most: float) -> set[int]:
        """The states reached from the first one by states of at most this cost."""
        seen, pending = {0}, [0]
        while pending:
            for other in self.edges[pending.pop()]:
                if other not in seen:
                    seen.add(other)
                    if self.costs[other] <= at_most:
                        pending.append(other)
        return seen


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    count = draw(st.integers(1, 8))
    costs = draw(st.lists(st.integers(100, 130), min_size=count, max_size=count))
    below = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    others = st.lists(st.integers(0, count - 1), max_size=3)
    edges = draw(st.lists(others, min_size=count, max_size=count))
    return Drawn(costs, [c - b for c, b in zip(costs, below, strict=True)], edges)


@given(drawn(), st.sampled_from((1.0, 1.05, 1.2, 2.0)))
def test_best_state_reached_within_the_threshold_is_found(space: Drawn, threshold: float):
    """For any estimates, as long as no state costs less than its estimate."""
    outcome = space.search(BacktrackLimits(threshold))
    cost = space.costs[outcome.best]
    assert cost <= min(space.costs[state] for state in space.reached(threshold * cost))
    assert outcome.best in space.reached(inf)
    assert outcome.left == 0


@given(drawn(), st.integers(0, 3))
def test_patience_bounds_the_states_priced_without_a_gain(space: Drawn, patience: int):
    outcome = space.search(BacktrackLimits(inf, patience))
    gains = len(space.costs)
    assert outcome.priced <= patience * (gains + 1) + gains
    if not patience:
        assert outcome.best == outcome.priced == 0


def test_a_step_that_costs_leads_to_one_that_gains():
    space = Drawn((100, 103, 50), (100, 103, 50), ((1,), (2,), ()))
    assert space.search(BacktrackLimits(1.0)).best == 0
    assert space.search(BacktrackLimits(1.05)).best == 2


def test_search_that_is_cut_short_counts_the_states_left():
    space = Drawn((100, 101, 102), (100, 101, 102), ((1, 2), (), ()))
    over = iter((False, True))
    outcome = space.search(BacktrackLimits(1.05, is_over=lambda: next(over)))
    assert (outcome.best, outcome.priced, outcome.left) == (0, 0, 2)


def test_gain_below_the_least_gain_is_ignored():
    space = Drawn((1000, 999), (1000, 999), ((1,), ()))
    assert space.search(BacktrackLimits(least_gain=2e-3)).best == 0
    assert space.search(BacktrackLimits(least_gain=5e-4)).best == 1
