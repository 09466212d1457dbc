"""Branches of a graph: all are found, and they are independent of each other."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from hypothesis import given
from support.graphs.strategies import training_graphs

from pcg.graph.graph import Graph, Node
from pcg.plan.text import parse_graph
from search.split.branches import forks

NESTED = """
x = input[4, 4]
a = relu(x)
b = gelu(a)
c = add(sigmoid(b), tanh(relu(b)))
d = tanh(a)
return mean_loss(add(c, d))
"""
JOINED = "x = input[4, 4]\nreturn concat(concat(relu(x), gelu(x), axis=0), tanh(x), axis=0)"

IN_A_ROW = """
x = input[4, 4]
a = add(relu(x), gelu(x))
b = add(sigmoid(a), tanh(a))
return concat(b, tanh(x), axis=0)
"""


def names(branches: Iterable[tuple[Node, ...]]) -> set[tuple[str, ...]]:
    return {tuple(node.name for node in branch) for branch in branches}


def test_branches_within_branches():
    outer, inner = forks(parse_graph(NESTED))
    assert names(outer.branches) == {("gelu", "sigmoid", "relu", "tanh", "add"), ("tanh",)}
    assert names(inner.branches) == {("sigmoid",), ("relu", "tanh")}


def test_row_of_operators_has_no_branches():
    graph = parse_graph("x = input[4, 4]\nt = relu(x)\nreturn mean_loss(add(gelu(t), t))")
    assert forks(graph) == []


def test_innermost_branches_are_all_operands_of_a_row_of_concats():
    outer, inner = forks(parse_graph(JOINED))
    assert names(outer.branches) == {("relu", "gelu", "concat"), ("tanh",)}
    assert names(outer.innermost) == {("relu",), ("gelu",), ("tanh",)}
    assert inner.innermost == inner.branches


def test_forks_in_a_row_are_not_joined_by_one_operator():
    """One of the forks waits for the other."""
    outer, *_ = forks(parse_graph(IN_A_ROW))
    assert len(outer.inside[0]) == 2
    assert outer.innermost == outer.branches


@given(graph=training_graphs(cut=False))
def test_branches_depend_on_each_other_in_nothing(graph):
    ways = [way for fork in forks(graph) for way in (fork.branches, fork.innermost)]
    for branches in ways:
        assert len(branches) > 1
        for one, other in combinations(branches, 2):
            for first, second in ((one, other), (other, one)):
                computed = {n for node in first for n in Graph((node.value(),)).nodes}
                assert computed.isdisjoint(second)
