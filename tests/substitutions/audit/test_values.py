"""Values with ids: replacing a few of them gives the same as rebuilding the whole graph."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from support.graphs.strategies import graphs

from pcg.graph.graph import Graph, Node, Value, rebuild, topological
from pcg.ops import OPERATORS
from pcg.plan.text import node_names, parse_graph
from substitutions.audit.errors import Refused
from substitutions.audit.values import NamedValues, Port, draft

SCALE = OPERATORS["scale"]


def named(graph: Graph) -> dict[str, Value]:
    names = node_names(graph)
    return {name: n.value(p) for n in graph.nodes for p, name in enumerate(names[n])}


def rebuilt(ids: dict[str, Value], images: dict[Value, Value]) -> dict[str, Value]:
    """The values of the ids after some are replaced. The replaced ids keep their old values."""
    return {
        name: value if value in images else rebuild((value,), images)[0]
        for name, value in ids.items()
    }


@st.composite
def replacement(draw: DrawFn, graph: Graph, ids: dict[str, Value]) -> tuple[str, str | float]:
    """The id of a value of the graph, and the id of a value that may replace it, or a factor if the
    replacement is the value scaled."""
    inside = {n.value(p) for n in graph.nodes for p in range(len(n.types))}
    alive = sorted(name for name, value in ids.items() if value in inside)
    old = draw(st.sampled_from(alive))
    if not ids[old].node.is_leaf and draw(st.booleans()):
        others = [name for name in alive if name != old and ids[name].type == ids[old].type]
        fit = [n for n in others if ids[old].node not in topological([ids[n].node])]
        if fit:
            return old, draw(st.sampled_from(fit))
    return old, draw(st.sampled_from((0.5, 2.0)))


@settings(max_examples=30, deadline=None)
@given(graph=graphs(operators=7), data=st.data())
def test_replacing_values_by_id_is_rebuilding_the_graph(graph: Graph, data: st.DataObject):
    values, ids = NamedValues(graph), named(graph)
    for step in range(4):
        old, new = data.draw(replacement(graph, ids))
        port = values.at(old)
        if isinstance(new, str):
            images = {ids[old]: ids[new]}
            values.replace([port], [values.at(new)], [])
        else:
            scaled = Node(SCALE(factor=new), (ids[old],)).value()
            images = {ids[old]: scaled}
            item = draft(SCALE(factor=new), (port,))
            values.name(item, [f"{step}.0"])
            values.replace([port], [Port(item)], [item])
        graph, ids = graph.replace(images), rebuilt(ids, images)
        if not isinstance(new, str):
            ids[f"{step}.0"] = images[next(iter(images))]
        assert values.graph().outputs == graph.outputs


def test_values_that_become_equal_are_merged():
    values = NamedValues(
        parse_graph(
            "x = input[4, 4]\nt0 = relu(x)\nt1 = tanh(t0)\nt2 = gelu(x)\nt3 = tanh(t2)\n"
            "return add(t1, t3)"
        )
    )
    values.replace([values.at("t2")], [values.at("t0")], [])
    assert values.at("t3") == values.at("t1")  # tanh of either
    assert values.graph() == parse_graph("x = input[4, 4]\nc = tanh(relu(x))\nreturn add(c, c)")
    with pytest.raises(Refused, match="t2 is no longer part of the graph"):
        values.at("t2")
    with pytest.raises(Refused, match="t9 is no value"):
        values.at("t9")


def test_merges_go_on_to_the_outputs():
    values = NamedValues(
        parse_graph(
            "x = input[4]\nt0 = relu(x)\nt1 = tanh(t0)\nt2 = add(t1, t0)\nt3 = gelu(x)\n"
            "t4 = tanh(t3)\nt5 = add(t3, t4)\nreturn add(t2, t5), t5, t4"
        )
    )
    values.replace([values.at("t3")], [values.at("t0")], [])
    assert values.graph() == parse_graph(
        "x = input[4]\na = relu(x)\nb = tanh(a)\nc = add(b, a)\nreturn add(c, c), c, b"
    )
