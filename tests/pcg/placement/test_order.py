"""Orders of issue: every order that is made is one, and others are refused with the operator."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs.strategies import graphs

from pcg.graph.graph import Graph
from pcg.placement.order import order_problem, ordered, sources
from pcg.plan.text import node_names, parse_graph

TWO_BRANCHES = parse_graph("""
    x = input[8, 6]
    a = weight[6, 6]
    left = relu(matmul(partition(x, dim=0, degree=2), replicate(a, degree=2)))
    right = gelu(x)
    return mean_loss(add(combine(left, dim=0, degree=2), right))
""")


@given(graph=graphs(), places=st.randoms(use_true_random=False))
def test_the_least_place_that_is_ready_comes_first(graph: Graph, places):
    every = {node: places.random() for node in graph.computing}
    made = ordered(graph, every)
    assert order_problem(graph, made) is None
    assert ordered(graph, {node: at for at, node in enumerate(made)}) == made
    for at, node in enumerate(made):
        ready = (other for other in made[at:] if sources(other) <= set(made[:at]))
        assert every[node] == min(every[other] for other in ready)


def test_all_other_permutations_are_refused():
    graph = TWO_BRANCHES
    names = {node: names[0] for node, names in node_names(graph).items()}
    right = []
    for each in permutations(graph.computing):
        problem = order_problem(graph, each)
        if problem is None:
            right.append(" ".join(node.name for node in each))
        else:
            assert problem[1] == "issued before an operator whose result it reads"
            assert names[problem[0]]
    assert sorted(right) == [
        "gelu matmul relu add mean_loss",
        "matmul gelu relu add mean_loss",
        "matmul relu gelu add mean_loss",
    ]


@pytest.mark.parametrize("change", ["listed twice", "not listed"])
def test_each_operator_is_listed_once(change: str):
    nodes = TWO_BRANCHES.computing
    order = (*nodes, nodes[0]) if change == "listed twice" else nodes[:-1]
    at = nodes[0] if change == "listed twice" else nodes[-1]
    assert order_problem(TWO_BRANCHES, order) == (at, change)
