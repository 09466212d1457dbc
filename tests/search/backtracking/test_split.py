"""Splits at post-dominators: parts cover the graph, and stitching them gives it back."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs.strategies import graphs

from pcg.graph.graph import Graph
from pcg.models.mlp import mlp
from pcg.plan.text import node_names, parse_graph
from search.backtracking.backtrack import BacktrackResult
from search.backtracking.split import GraphPart, Span, cuts, parts, renamed, rules_across, shape_key
from search.backtracking.stitch import Leg, stitch
from search.substitute.applications import Option, Rewrites
from substitutions.rules.store import load_library


def whole(part: GraphPart) -> Option | None:
    return None if part.after is None else Option(part.after.type, (), (), ())


def rejoined(graph: Graph, size: int) -> Graph:
    found: list[Leg] = []
    enter: Option | None = None
    for part in parts(graph, size):
        leave = whole(part)
        start = part.graph(enter, leave)
        names = shape_key(start)[1]
        found.append(
            Leg(
                part,
                enter,
                leave,
                names,
                BacktrackResult(renamed(start, names), 0.0, (), 1, "exhausted"),
            )
        )
        enter = leave
    joined, derivation = stitch(graph, found)
    names = node_names(graph)
    known = {n.value(p): name for n in graph.nodes for p, name in enumerate(names[n])}
    assert {value: derivation.ids[value] for value in known} == known
    return joined


@settings(max_examples=30, deadline=None)
@given(graph=graphs(), size=st.integers(1, 4))
def test_stitching_the_parts_gives_the_graph(graph: Graph, size: int) -> None:
    assert rejoined(graph, size).digest == graph.digest


def test_a_chain_is_cut_behind_every_operator() -> None:
    graph = mlp(4, (4, 4, 4), prediction=True)
    names = [value.node.name for value in cuts(graph)]
    # The target joins at the addition; what it reads is no cut, the sum is.
    assert names == ["matmul", "relu", "matmul", "add", "multiply"]


def test_branches_are_not_cut_apart() -> None:
    graph = parse_graph(
        "x = input[4, 4]\na = relu(x)\nb = gelu(a)\nc = add(a, b)\nd = relu(c)\nreturn d"
    )
    assert [value.node.name for value in cuts(graph)] == ["relu", "add"]


def test_parts_have_the_size_asked_for() -> None:
    found = parts(mlp(4, (4,) * 9), 3)
    assert all(part.operators >= 3 for part in found[:-1])
    assert found[0].before is None
    assert found[-1].after is None


def test_cuts_are_where_the_fewest_rules_cross() -> None:
    """A product and its ReLU may be fused, so that they are not cut apart."""
    graph = mlp(4, (4,) * 9)
    rewrites = Rewrites(load_library().concrete(graph), 2)
    spans = rewrites.spans(graph)
    assert {"matmul", "relu"} in [{node.name for node in span} for span in spans]

    def across(given: Sequence[Span]) -> int:
        bounds = [part.after for part in parts(graph, 3, given)]
        return sum(rules_across(value, spans) for value in bounds if value is not None)

    assert across(()) > 0
    assert across(spans) == 0


def test_blocks_that_differ_in_names_alone_have_one_shape() -> None:
    first = parse_graph("a = input[4, 4]\nw = weight[4, 4]\nreturn relu(matmul(a, w))")
    other = parse_graph("c = input[4, 4]\nv = weight[4, 4]\nreturn relu(matmul(c, v))")
    shape, names = shape_key(first)
    assert shape == shape_key(other)[0]
    back = {new: old for old, new in names.items()}
    assert renamed(renamed(first, names), back).digest == first.digest
