"""Backtracking: it finds the best of small closures, and stops where it is told to."""

from __future__ import annotations

from math import inf

import pytest
from support.cases import a_third

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.models.mlp import mlp
from pcg.plan.text import parse_graph
from search.backtracking.backtrack import RewriteSpace, backtrack
from search.backtracking.mapping import Mapper
from search.cost.cost import CostModel
from search.substitute.applications import Keys, Rewrites
from substitutions.rules.store import Library, load_library


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


class Priced:
    """The price of graphs on four devices of the local machine, counted."""

    def __init__(self) -> None:
        machine = load_machine("local")
        self._mapper = Mapper(machine, CostModel(machine))
        self.calls = 0

    def __call__(self, graph: Graph) -> float:
        self.calls += 1
        mapped = self._mapper.best(graph)
        return inf if mapped is None else mapped.seconds


def closure(space: RewriteSpace) -> list[Graph]:
    """Every graph that rules reach."""
    seen = {space.start.key: space.start}
    frontier = [space.start]
    while frontier:
        found = {s.key: s for state in frontier for s in space.neighbours(state)}
        frontier = [s for key, s in found.items() if key not in seen]
        seen |= found
    return [state.graph for state in seen.values()]


@pytest.mark.parametrize(
    "text",
    a_third(
        [
            "x = input[512, 256]\nw = weight[256, 256]\nreturn sum_loss(matmul(x, w))",
            "x = input[2048, 64]\nw = weight[64, 64]\nreturn sum_loss(matmul(x, w))",
            "x = input[8, 2048]\nw = weight[2048, 2048]\nreturn sum_loss(matmul(x, w))",
        ]
    ),
)
def test_it_finds_the_best_of_the_closure(text: str, library: Library) -> None:
    graph = parse_graph(text)
    space = RewriteSpace(graph, Rewrites(library.concrete(graph), 4), Keys(), growth=0)
    price = Priced()
    best = min(price(graph) for graph in closure(space))
    assert backtrack(space, price, threshold=inf).seconds == best
    assert backtrack(space, price, threshold=1.5).seconds == best


def test_the_best_is_never_worse_than_the_start(library: Library) -> None:
    graph = mlp(8, (8, 8, 8))
    price = Priced()
    start = price(graph)
    found = backtrack(
        RewriteSpace(graph, Rewrites(library.concrete(graph), 4), Keys(), growth=1),
        price,
        budget=100,
    )
    assert found.seconds <= start
    assert found.candidates >= 1


def test_the_budget_is_kept_and_said(library: Library) -> None:
    graph = mlp(512, (512, 512, 512))
    price = Priced()
    space = RewriteSpace(graph, Rewrites(library.concrete(graph), 4), Keys(), growth=1)
    found = backtrack(space, price, budget=5, threshold=2.0)
    assert found.stop == "budget"
    late = backtrack(space, price, deadline=0.0)
    assert late.stop == "time"


def test_a_derivation_has_a_step_for_each_rule(library: Library) -> None:
    graph = mlp(512, (512, 512))
    found = backtrack(
        RewriteSpace(graph, Rewrites(library.concrete(graph), 4), Keys(), growth=0), Priced()
    )
    assert found.graph.digest != graph.digest
    names = {rule.name for rule in library.concrete(graph)}
    assert found.applied
    assert {step.rule.name.rstrip("~") for step in found.applied} <= names


def test_a_seed_orders_graphs_of_equal_cost(library: Library) -> None:
    """Whatever the order, all of a small closure is looked at, and the best has one cost."""
    graph = parse_graph("x = input[8, 8]\nw = weight[8, 8]\nreturn sum_loss(matmul(x, w))")
    rewrites, keys = Rewrites(library.concrete(graph), 2), Keys()
    orders: list[list[int]] = []
    for seed in (None, None, 1, 1, 2):
        order: list[int] = []
        backtrack(
            RewriteSpace(graph, rewrites, keys, growth=0),
            lambda _: 1.0,
            observe=lambda candidate, _, order=order: order.append(keys.of(candidate)),
            seed=seed,
        )
        orders.append(order)
    assert orders[0] == orders[1]
    assert orders[2] == orders[3]
    assert orders[2] != orders[4]
    assert {frozenset(order) for order in orders} == {frozenset(orders[0])}
