"""Pairs of graphs: both sides as one graph, and graphs rebuilt node by node."""

from __future__ import annotations

import pytest

from pcg.graph.graph import Graph, Node
from pcg.graph.pairs import (
    both,
    calls,
    halves,
    ports,
    remade,
    symbolic_attributes,
    with_numbers,
    with_polynomials,
)
from pcg.language.poly import Poly
from pcg.plan.text import parse_values

RANKS = {"x": 2, "y": 2}
LEFT = parse_values("split(concat(x, y, axis=0), axis=0, at=m+1).1", RANKS)
RIGHT = parse_values("scale(y, factor=c)", RANKS)
PAIR = (LEFT, RIGHT)


def test_joined_sides_of_a_pair_are_split_again():
    assert halves(both(PAIR).outputs) == PAIR


def test_graph_rebuilt_without_a_change_is_equal():
    graph = both(PAIR)
    assert halves(remade(graph, lambda node, inputs: Node(node.call, inputs))) == PAIR


def test_operands_are_made_before_their_users():
    seen: list[str] = []

    def make(node: Node, inputs: tuple[object, ...]) -> Node:
        seen.append(node.name)
        assert len(inputs) == len(node.inputs)
        return node

    assert remade(Graph(LEFT), make) == LEFT
    assert seen == ["x", "y", "concat", "split"]


def test_symbols_of_attributes():
    stated = [
        (call.name, name, str(value)) for call, name, value in symbolic_attributes(both(PAIR))
    ]
    assert stated == [("split", "at", "m + 1"), ("scale", "factor", "c")]
    split, scale = (next(c for c in calls(both(PAIR)) if c.name == n) for n in ("split", "scale"))
    assert with_numbers(split, {"m": 2}).values == {"axis": 0, "at": 3}
    assert with_numbers(scale, {"c": 0.5}).values == {"factor": 0.5}
    assert with_polynomials(split, {"m": Poly.of("n")}).values["at"] == Poly.of("n") + 1
    with pytest.raises(KeyError, match="'m'"):
        with_numbers(split, {"c": 1})


def test_a_node_has_as_many_ports_as_outputs():
    assert [len(ports(node)) for node in Graph(LEFT).nodes] == [1, 1, 1, 2]
