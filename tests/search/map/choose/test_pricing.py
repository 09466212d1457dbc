"""Pricing and choosing agree: a choice costs the sum of the prices of its strategies and
reshardings."""

from __future__ import annotations

import numpy as np
import pytest

from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.map.choose.choosing import Chooser
from search.map.choose.duties import duties_in
from search.map.rules.cuts import Cuts
from substitutions.rules.store import load_library

GRAPH = """
x = input[16, 32]
w = weight[32, 64]
v = weight[64, 32]
h = relu(matmul(x, w))
y = relu(matmul(h, v))
z = matmul(relu(matmul(y, w)), v)
return z
"""


@pytest.fixture(scope="module")
def chooser() -> Chooser:
    graph = parse_graph(GRAPH)
    cost = CostModel(load_machine("summit").with_devices(6))
    return Chooser.on(cost, Cuts.of_rules(load_library().concrete(graph)))


def test_a_choice_costs_the_sum_of_its_prices(chooser: Chooser) -> None:
    graph = parse_graph(GRAPH)
    choice, prices = chooser.choose(graph), chooser.prices(graph)
    places = [chooser.spaces.of(node).place(choice.strategies[node]) for node in prices.nodes]
    alone = sum(float(prices.alone[n][p]) for n, p in zip(prices.nodes, places, strict=True))
    moved = sum(
        f.times * float(f.values[tuple(places[v] for v in f.variables)]) for f in prices.resharding
    )
    # The rest is the resharding of the output to one device.
    (end,) = graph.outputs
    gathered = 2.0 * float(chooser.pricing.gathering(end)[places[prices.nodes.index(end.node)]])
    assert choice.seconds == pytest.approx(alone + moved + gathered, rel=1e-6)


def test_operators_that_are_alike_are_priced_once(chooser: Chooser) -> None:
    """Two products with the same weight are of one kind, and share their prices."""
    graph = parse_graph(GRAPH)
    _, one, _, other = (node for node in graph.operators if node.name == "matmul")
    assert chooser.spaces.kind(one) == chooser.spaces.kind(other)
    duties = duties_in(graph, graph.operators)[one]
    known = chooser.pricing.operator_costs(one, duties)
    hits = chooser.pricing.known
    assert chooser.pricing.operator_costs(other, duties) is known
    assert chooser.pricing.known == hits + 1


def test_a_weight_belongs_to_its_first_reader() -> None:
    graph = parse_graph(GRAPH)
    duties = duties_in(graph, graph.operators)
    readers = [node for node, own in duties.items() if own.weights]
    assert [node.inputs[1].node.leaf.name for node in readers] == ["w", "v"]
    assert all(own.weights in ((), (1,)) for own in duties.values())


def test_compute_time_is_part_of_the_price_of_an_operator_alone(chooser: Chooser) -> None:
    """The price of an operator alone includes its computing time."""
    graph = parse_graph(GRAPH)
    computing, prices = chooser.pricing.computing(graph), chooser.prices(graph)
    for node in graph.operators:
        assert np.all(computing[node] <= prices.alone[node] + 1e-12)
