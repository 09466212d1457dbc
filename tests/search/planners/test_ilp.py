"""Alpa's integer program, against all choices, on random tables and on small graphs."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from random import Random
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import a_third
from support.small_branching import small_graph

from pcg.machine import load_machine
from search.cost.cost import SGD, CostModel
from search.cost.progress import OutOfTime, Phases
from search.map.choose.choosing import Chooser
from search.map.choose.factors import Factor
from search.map.rules.cuts import Cuts
from search.planners.alpa.intra import best_places
from search.planners.ilp import HeldBytes, Tally, solve
from search.planners.row_prices import logical_masks
from substitutions.rules.store import load_library


def all_sums(sizes, factors, held=None):
    """The sums of all choices, of shape [sizes]. They are infinite if a choice needs too much
    memory."""
    total, full = np.zeros(sizes), np.zeros(sizes)
    for factor in factors:
        shape = [size if v in factor.variables else 1 for v, size in enumerate(sizes)]
        total = total + factor.scaled.reshape(shape)
    if held is None:
        return total
    for v, own in enumerate(held.bytes):
        full = full + own.reshape([-1 if u == v else 1 for u in range(len(sizes))])
    return np.where(full <= held.limit, total, inf)


@given(seed=st.integers(0, 1 << 30), limited=st.booleans())
def test_random_tables(seed, limited):
    drawn = np.random.default_rng(seed)
    sizes = [int(n) for n in drawn.integers(1, 5, drawn.integers(1, 7))]
    factors = [Factor((v,), drawn.random(size) * 1e-3) for v, size in enumerate(sizes)]
    for a in range(len(sizes)):
        for b in range(a + 1, len(sizes)):
            if drawn.random() < 0.5:
                table = drawn.integers(0, 4, (sizes[a], sizes[b])) * 1e-4
                factors.append(Factor((a, b), table))
    own = [drawn.integers(1, 100, size).astype(float) for size in sizes]
    held = HeldBytes(own, 0.9 * sum(one.mean() for one in own)) if limited else None
    sums = all_sums(sizes, factors, held)
    solution = solve(sizes, factors, held)
    if solution is None:
        assert sums.min() == inf
        return
    assert solution.seconds == pytest.approx(sums.min(), rel=1e-7)
    assert solution.seconds == pytest.approx(sums[solution.places], rel=1e-12)
    assert solution.relaxed <= solution.seconds * (1 + 1e-7)
    assert not solution.is_relaxed or solution.relaxation_gap < 1e-7
    assert solve(sizes, factors, held, better_than=solution.seconds * 0.999) is None


def test_a_cycle_of_three_is_branched():
    """Three variables of two values, each to differ from the two others: the relaxation takes
    halves."""
    alike = np.eye(2) * 1e-3
    factors = [Factor(pair, alike) for pair in ((0, 1), (0, 2), (1, 2))]
    solution = solve([2, 2, 2], factors)
    assert solution is not None
    assert solution.seconds == pytest.approx(1e-3)
    assert not solution.is_relaxed
    assert solution.relaxation_gap == pytest.approx(1.0)
    assert solution.gap == 0.0


@lru_cache(maxsize=1)
def library():
    return load_library()


def test_a_solver_ends_with_its_search():
    """By itself, the solver branches for all of its 60 seconds."""
    random, count = np.random.default_rng(0), 24
    pairs = [(a, b) for a in range(count) for b in range(a)]
    factors = [Factor(pair, random.random((12, 12))) for pair in pairs]
    start = perf_counter()
    with Phases(start + 1.0, has_plan=True).under_way(), pytest.raises(OutOfTime):
        solve([12] * count, factors)
    assert perf_counter() - start < 30.0


@pytest.mark.parametrize("seed", a_third(range(30)))
def test_small_graphs(seed):
    """By the prices of a machine, on all logical meshes, with and without a limit of memory."""
    graph = small_graph(Random(seed))
    cost = CostModel(load_machine("dgx-a100").with_devices(4), SGD, None)
    chooser = Chooser.on(cost, Cuts.of_rules(library().concrete(graph)))
    prices = chooser.prices(graph)
    number = {node: i for i, node in enumerate(prices.nodes)}
    factors = [Factor((number[node],), own) for node, own in prices.alone.items()]
    factors += prices.resharding
    spaces = [chooser.spaces.of(node) for node in prices.nodes]
    duties = chooser.pricing.duties(graph, prices.nodes, keeps=True)
    own = [chooser.pricing.operator_costs(node, duty).memory for node, duty in duties.items()]
    sizes = [len(space) for space in spaces]
    allowed = np.zeros(sizes, bool)
    for split in range(len(chooser.mesh)):
        allowed[np.ix_(*logical_masks(spaces, split))] = True
    least = sum(float(bytes_held.min()) for bytes_held in own)
    for limit in (None, 1.5 * least, 0.5 * least):
        held = None if limit is None else HeldBytes(own, limit)
        sums = np.where(allowed, all_sums(sizes, factors, held), inf)
        places = best_places(spaces, range(len(spaces)), factors, held, Tally())
        if places is None:
            assert sums.min() == inf
        else:
            assert sums[tuple(places)] == pytest.approx(sums.min(), rel=1e-6)
