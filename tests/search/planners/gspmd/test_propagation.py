"""Propagation: it ends in the least closed sharding, keeps the annotations, and reports the
rest."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs.transformer import transformer

from pcg.graph.graph import Graph, Node, Value
from pcg.machine import load_machine
from pcg.plan.text import node_names, parse_graph
from pcg.types.local import Axis
from search.map.space.strategies import passes
from search.planners.common import PlannerSetting
from search.planners.gspmd.annotations import TensorAnnotation, annotated, parse_mesh
from search.planners.gspmd.propagation import BROADCAST, PropagatedShardings, Propagation, links
from substitutions.rules.store import load_library

MESH = parse_mesh("data=2,model=4", (2, 2, 2))


@lru_cache(maxsize=4)
def cuttable(graph: Graph) -> dict[Node, list[Axis]]:
    machine = load_machine("dgx-a100").with_devices(8)
    spaces = PlannerSetting(machine, load_library()).chooser(graph, windows=True).spaces
    return {n: [a for a in spaces.of(n).axes if not passes(a)] for n in graph.operators}


def completed(
    graph: Graph, stated: dict[Value, TensorAnnotation], seed: int | None
) -> PropagatedShardings:
    order = list(graph.operators)
    if seed is not None:
        Random(seed).shuffle(order)
    return Propagation(MESH, cuttable(graph), stated).run(order)


@st.composite
def stated(draw: st.DrawFn, graph: Graph) -> dict[Value, TensorAnnotation]:
    """Annotations of up to four tensors. Some of their dimensions are open."""
    values = [value for node in graph.nodes for value in node.outputs if value.rank]
    annotations: dict[Value, TensorAnnotation] = {}
    for value in draw(st.lists(st.sampled_from(values), min_size=1, max_size=4, unique=True)):
        left = {0: 2, 1: 4}
        dims: list[tuple[int, ...] | None] = []
        for size in value.type.shape:
            ways = [None, (), *((axis,) for axis, n in left.items() if size % n == 0)]
            dims.append(draw(st.sampled_from(ways)))
            for axis in dims[-1] or ():
                left.pop(axis)
        annotations[value] = TensorAnnotation(tuple(dims))
    return annotations


GRAPH = transformer(1, 8, 16)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 1 << 20))
def test_the_order_of_operators_does_not_matter_where_shardings_are_compatible(data, seed: int):
    own = data.draw(stated(GRAPH))
    first, other = completed(GRAPH, own, None), completed(GRAPH, own, seed)
    if not first.refusals:
        assert other == first


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_propagation_keeps_annotations_and_reaches_a_fixed_point(data):
    own = data.draw(stated(GRAPH))
    completion = completed(GRAPH, own, None)
    for value, said in own.items():
        now = completion.shardings.get(value, {})
        assert now.items() >= said.axes.items()
        assert {dim for axis, dim in now.items() if axis not in said.axes} <= said.open
    refused = {(r.value, r.axis, r.dim) for r in completion.refusals}
    for node in GRAPH.operators:
        for link in (way for ways in links(node, cuttable(GRAPH)[node]) for way in ways):
            closed = link.target in own and link.target_dim not in own[link.target].open
            for axis, dim in completion.shardings.get(link.source, {}).items():
                if dim == link.source_dim and link.level <= BROADCAST and not closed:
                    taken = completion.shardings.get(link.target, {}).get(axis) == link.target_dim
                    assert taken or (link.target, axis, link.target_dim) in refused


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_axis_cuts_more_than_divides(data):
    completion = completed(GRAPH, data.draw(stated(GRAPH)), None)
    for value, own in completion.shardings.items():
        for dim, size in enumerate(value.type.shape):
            parts = 1
            for axis, at in own.items():
                parts *= MESH.sizes[axis] if at == dim else 1
            assert size % parts == 0


SMALL = """
x = input[8, 12]
w = weight[12, 16]
b = weight[16]
c = weight[16]
h = matmul(x, w)
y = add(h, expand_vector(h, b, axis=1))
z = relu(add(y, expand_vector(y, c, axis=1)))
return mean_loss(z)
"""


def shardings_of(*shards: str) -> dict[str, dict[int, int]]:
    graph = parse_graph(SMALL)
    shardings = completed(graph, dict(annotated(graph, shards, MESH)), None).shardings
    names = node_names(graph)
    return {names[value.node][value.port]: dict(own) for value, own in shardings.items()}


def test_shardings_go_forward_and_backward_and_merge():
    shardings = shardings_of("x=data,-", "w=-,model")
    assert shardings["x"] == {0: 0}
    assert shardings["w"] == {1: 1}
    results = [own for name, own in shardings.items() if name.startswith("t")]
    assert results.count({0: 0, 1: 1}) >= 5
    assert shardings["b"] == shardings["c"] == {1: 0}


def test_first_of_two_incompatible_shardings_stays():
    graph = parse_graph(SMALL)
    completion = completed(graph, dict(annotated(graph, ["x=model,-", "w=-,model"], MESH)), None)
    assert completion.refusals
    assert {refusal.axis for refusal in completion.refusals} == {1}


LEVELS = """
x = input[8, 8]
a = input[8, 8]
w = weight[8, 8]
v = weight[8]
e = add(matmul(x, w), a)
return mean_loss(relu(add(e, expand_vector(e, v, axis=1))))
"""


def test_element_wise_operators_come_before_products_and_broadcasts_last():
    """A product and a broadcast would shard columns, but the addition has sharded rows before."""
    graph = parse_graph(LEVELS)
    completion = completed(
        graph, dict(annotated(graph, ["a=model,-", "w=-,model", "v=model"], MESH)), None
    )
    made = [n for n in graph.operators if n.name in ("matmul", "expand_vector", "relu")]
    assert [completion.shardings[node.value()] for node in made] == [{1: 0}] * 3
    assert {(r.operator.name, r.axis, r.dim) for r in completion.refusals} >= {
        ("matmul", 1, 1),
        ("expand_vector", 1, 1),
    }
    without = completed(graph, dict(annotated(graph, ["w=-,model"], MESH)), None)
    assert without.shardings[made[0].value()] == {1: 1}
