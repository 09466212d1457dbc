"""TePDist's cones and stages, against all choices."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, pairwise, product
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs.transformer import transformer
from support.small_branching import small_graph

from pcg.machine import load_machine
from pcg.readings.kind import kind_of
from search.cost.cost import SGD, CostModel
from search.map.choose.choosing import Chooser
from search.map.choose.factors import Factor
from search.map.rules.cuts import Cuts
from search.planners.ilp import HeldBytes
from search.planners.row_cuts import operations, readings
from search.planners.row_prices import RowPrices
from search.planners.tepdist.cones import Cones, cones
from search.planners.tepdist.planner import solve_cones
from search.planners.tepdist.stages import SLACK, stage_bounds
from substitutions.rules.store import load_library


@lru_cache(maxsize=1)
def library():
    return load_library()


def summed(factors, places):
    return sum(float(f.scaled[tuple(places[v] for v in f.variables)]) for f in factors)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_cone_takes_its_least_for_each_strategy_of_its_root(seed):
    drawn = np.random.default_rng(seed)
    count = int(drawn.integers(1, 6))
    sizes = [int(n) for n in drawn.integers(1, 4, count)]
    reader = [int(drawn.integers(i + 1, count)) for i in range(count - 1)]
    factors = [Factor((v,), drawn.random(size)) for v, size in enumerate(sizes)]
    for i, to in enumerate(reader):
        # An operator may read another twice.
        for _ in range(int(drawn.integers(1, 3))):
            factors.append(Factor((i, to), drawn.random((sizes[i], sizes[to]))))
    made = Cones.made([count - 1] * count, sizes, factors)
    assert len(made.tables) == 1
    for at, seconds in enumerate(made.tables[0].seconds):
        ways = product(*map(range, sizes[:-1]))
        assert seconds == pytest.approx(min(summed(factors, (*way, at)) for way in ways))
        assert summed(factors, made.spread([at])) == pytest.approx(seconds)


@pytest.mark.parametrize("seed", range(12))
def test_small_graphs(seed):
    """By a machine's prices: the least of all strategies of the roots, with a limit and without."""
    graph = small_graph(Random(seed))
    cost = CostModel(load_machine("dgx-a100").with_devices(4), SGD, None)
    prices = RowPrices.of_graph(graph, Chooser.on(cost, Cuts.of_rules(library().concrete(graph))))
    count = len(prices.nodes)
    factors, held = prices.factors(0, count), prices.costs
    sizes = [len(space) for space in prices.spaces]
    made = Cones.made(cones(prices.nodes), sizes, factors)
    bytes_held = [own.activations for own in held]
    least = sum(float(own.min()) for own in bytes_held)
    for limit in (None, 1.5 * least, 0.5 * least):
        most = inf if limit is None else limit
        best = inf
        for way in product(*(range(len(table.seconds)) for table in made.tables)):
            places = made.spread(way)
            full = sum(float(own[at]) for own, at in zip(bytes_held, places, strict=True))
            if full <= most:
                best = min(best, summed(factors, places))
        given_limit = None if limit is None else HeldBytes(bytes_held, limit)
        solution = solve_cones(made, prices.colours, given_limit)
        if solution is None:
            assert best == inf
            continue
        assert summed(factors, made.spread(solution[1])) == pytest.approx(solution[0].seconds)
        assert best * (1 - 1e-9) <= solution[0].seconds <= best * (1 + 5e-3)


def test_cones_are_trees_below_products_and_shared_tensors():
    graph = transformer(2)
    nodes = graph.operators
    number = {node: i for i, node in enumerate(nodes)}
    roots = cones(nodes)
    readers = {i: set() for i in range(len(nodes))}
    for i, node in enumerate(nodes):
        for value in node.inputs:
            if value.node in number:
                readers[number[value.node]].add(i)
    assert len(set(roots)) < len(nodes)
    for i, root in enumerate(roots):
        is_root = len(readers[i]) != 1 or kind_of(nodes[i]) == "contraction"
        assert (root == i) == is_root
        assert is_root or roots[min(readers[i])] == root


@pytest.mark.parametrize("count", [1, 2, 3])
def test_stages_are_the_least_cut_of_all_that_are_balanced(count):
    graph = transformer(2)
    flops, total = operations(graph), len(graph.operators)
    share = max(flops.sum() / count * (1 + SLACK), flops.max())

    def passed(bounds):
        """Elements that stages read from earlier ones."""
        return sum(
            size
            for maker, readers, size in readings(graph)
            for a, b in pairwise(bounds)
            if maker < a and any(a <= reader < b for reader in readers)
        )

    ways = ((0, *inner, total) for inner in combinations(range(1, total), count - 1))
    legal = [w for w in ways if max(flops[a:b].sum() for a, b in pairwise(w)) <= share]
    bounds = stage_bounds(graph, count)
    assert bounds in legal
    assert passed(bounds) == min(map(passed, legal))
