"""Operators that are cut once for each kind give the same graph as operators cut one by one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pcg.graph.graph import Graph, Node, Value
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.placement.view import MachineView
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.cost.derivation import Derivation, Scribe
from search.map.building import Builder, Cut
from search.map.choose.choosing import Choice, Chooser
from search.map.rules import templates
from search.map.rules.cuts import Cuts
from search.map.rules.fully_sharded import PlacedGraph, fully_sharded
from search.map.space.strategies import starts
from substitutions.rules.store import load_library

BLOCK = """
w{i} = weight[48, 96]
v{i} = weight[96, 48]
h{i} = matmul(relu(matmul(x{i}, w{i})), v{i})
x{n} = add(add(h{i}, h{i}), x{i})
"""
"""One value is read twice, and partial sums may pass its reader."""


def blocks(count: int) -> Graph:
    """A graph of equal blocks."""
    inside = "".join(BLOCK.format(i=i, n=i + 1) for i in range(count))
    return parse_graph(f"x0 = input[24, 48]{inside}return mean_loss(x{count})")


def graph_of(name: str) -> Graph:
    return blocks(4) if name == "blocks" else build_model(f"{name}-tiny", 24, 6)


def one_by_one(builder: Builder, choice: Choice) -> Cut:
    """The graph that is cut as chosen, operator by operator and rule by rule."""
    new: dict[Value, Value] = {}
    views: dict[Node, MachineView] = {}
    scribe = Scribe.after(Derivation.start(choice.graph))
    for node in choice.graph.nodes:
        if node.is_leaf:
            new[node.value()] = node.value()
            continue
        made = Node(node.call, tuple(new[value] for value in node.inputs))
        scribe.rename(dict(zip(node.outputs, made.outputs, strict=True)))
        mapping = builder.mapping(choice, node)
        cut = builder.cut_along(node, made, mapping.cuts)
        for applied, same in cut.steps:
            if applied is not None:
                scribe.write(applied)
            scribe.rename(same)
        views[cut.inner] = cut.placed.view(mapping)
        new.update(zip(node.outputs, cut.outer, strict=True))
    placed = PlacedGraph(Graph(tuple(new[value] for value in choice.graph.outputs)), views)
    if choice.fully_sharded:
        weights = {leaf.leaf.name for leaf in choice.graph.leaves}
        devices, parting = builder.spaces.mesh.machine.devices, builder.spaces.cuts.parting
        placed = fully_sharded(placed, weights, devices, parting, scribe)
    return Cut(placed.graph, placed.views, tuple(scribe.steps))


@pytest.mark.parametrize(
    "name",
    [
        "blocks",
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in ("bert-large", "dlrm", "resnext50")
        ),
    ],
)
@pytest.mark.parametrize("windows", [False, True])
def test_a_graph_is_cut_as_operator_by_operator(name: str, windows: bool):
    graph = graph_of(name)
    cost = CostModel(load_machine("summit").with_devices(6))
    chooser = Chooser.on(cost, Cuts.of_rules(load_library().concrete(graph), windows=windows))
    builder, random = Builder(chooser.spaces), Random(name)
    for turn in range(3):
        strategies = {
            node: tuple(random.choice(chooser.spaces.of(node).strategies.tolist()))
            for node in graph.operators
        }
        begin = {node: random.choice(starts(own, chooser.mesh)) for node, own in strategies.items()}
        choice = Choice(graph, strategies, 0.0, turn % 3 == 2, begin if turn % 2 else {})
        placed, cut = builder.placed(choice), one_by_one(builder, choice)
        assert placed.graph == cut.graph
        assert placed.views == cut.views
        assert builder.cut(choice) == cut
        assert [node.types for node in placed.graph.nodes] == [n.types for n in cut.graph.nodes]


def test_blocks_that_are_alike_are_cut_once(monkeypatch: pytest.MonkeyPatch):
    graph = graph_of("blocks")
    cost = CostModel(load_machine("dgx-a100").with_devices(8))
    chooser = Chooser.on(cost, Cuts.of_rules(load_library().concrete(graph)))
    made: list[object] = []
    of = templates.CutTemplate.of

    def noted(*given: Any) -> templates.CutTemplate:
        made.append(given)
        return of(*given)

    monkeypatch.setattr(templates.CutTemplate, "of", staticmethod(noted))
    builder, choice = Builder(chooser.spaces), chooser.choose(graph)
    builder.placed(choice)
    first = len(made)
    builder.placed(choice)
    assert 0 < first == len(made) < len(graph.operators)
