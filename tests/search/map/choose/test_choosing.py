"""Sums that count a resharding once if several readers share it."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcg.graph.graph import Graph, Node
from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.map.choose.choosing import Chooser, Exposed
from search.map.rules.cuts import Cuts
from search.map.space.strategies import Strategy
from substitutions.rules.store import load_library

GRAPH = parse_graph("""
x = input[16, 32]
w = weight[32, 64]
u = weight[64, 64]
v = weight[64, 64]
h = relu(matmul(x, w))
return add(add(matmul(h, u), relu(h)), matmul(h, v))
""")
COST = CostModel(load_machine("dgx-a100").with_devices(4))


@cache
def chooser() -> Chooser:
    return Chooser.on(COST, Cuts.of_rules(load_library().concrete(GRAPH)))


def readers(graph: Graph, maker: Node) -> list[tuple[Node, int]]:
    operands = ((node, at) for node in graph.operators for at in range(len(node.inputs)))
    return [(node, at) for node, at in operands if node.inputs[at].node is maker]


def test_all_readers_share_one_layout_by_default() -> None:
    (h,) = (node for node in GRAPH.operators if len(readers(GRAPH, node)) > 1)
    assert chooser().shared(GRAPH) == dict.fromkeys(readers(GRAPH, h), 1 / 3)


@given(st.data())
@settings(max_examples=60)
def test_a_choice_costs_the_resharding_to_each_different_layout(data: st.DataObject) -> None:
    strategies: dict[Node, Strategy] = {}
    for node in GRAPH.operators:
        rows = chooser().spaces.of(node).strategies.tolist()
        strategies[node] = tuple(data.draw(st.sampled_from(rows)))
    choice = chooser().choose(GRAPH, fixed=strategies)
    shared = Exposed(shared=chooser().shared(GRAPH, choice))
    once = chooser().choose(GRAPH, fixed=strategies, exposed=shared).seconds

    prices = chooser().prices(GRAPH)
    place = [chooser().spaces.of(node).place(strategies[node]) for node in prices.nodes]
    seconds = {
        tuple(prices.nodes[at] for at in f.variables): f.times
        * float(f.values[tuple(place[at] for at in f.variables)])
        for f in prices.resharding
    }
    again: dict[tuple[Node, bytes], list[float]] = defaultdict(list)
    for maker in GRAPH.operators:
        for reader, at in readers(GRAPH, maker):
            own = chooser().spaces.of(reader)
            layout = own.operand(at)[own.place(strategies[reader])].tobytes()
            again[maker, layout].append(seconds[maker, reader])
    saved = sum(sum(each) - each[0] for each in again.values())
    assert once == pytest.approx(choice.seconds - saved, rel=1e-6)
