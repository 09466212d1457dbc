"""Graphs: structure decides equality and hash, rewriting shares nodes, and depth is no limit."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs.strategies import graphs

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Node, Value, apply, leaf, tensor
from pcg.ops.algebra import add, matmul, multiply, relu, scale
from pcg.ops.layers import softmax, sum_loss
from pcg.ops.parallel import join, partition
from pcg.ops.reindexing import concat, split
from pcg.plan.text import parse_graph, print_graph

X = leaf("input", "x", (4, 6))
Y = leaf("input", "y", (4, 6))


@given(graphs(), st.randoms(use_true_random=False))
def test_digest_does_not_depend_on_the_order_of_construction(graph: Graph, random):
    copies: dict[Node, Node] = {}
    waiting = list(graph.nodes)
    while waiting:
        ready = [n for n in waiting if all(v.node in copies for v in n.inputs)]
        node = random.choice(ready)
        waiting.remove(node)
        inputs = tuple(Value(copies[v.node], v.port) for v in node.inputs)
        copies[node] = Node(node.call, inputs)
    again = Graph(tuple(Value(copies[v.node], v.port) for v in graph.outputs))
    assert again == graph
    assert again.digest == graph.digest
    assert print_graph(again) == print_graph(graph)


@given(graphs())
def test_nodes_come_after_their_operands(graph: Graph):
    position = {node: i for i, node in enumerate(graph.nodes)}
    assert len(position) == len(graph.nodes)
    for node in graph.nodes:
        for value in node.inputs:
            assert position[value.node] < position[node]
            assert node in graph.users[value.node]
    assert sum(len(users) for users in graph.users.values()) == sum(
        len({value.node for value in node.inputs}) for node in graph.nodes
    )


@pytest.mark.parametrize("operator", [add, multiply, join])
def test_commutative_operators_have_one_digest(operator):
    assert apply(operator(), X, Y) == apply(operator(), Y, X)
    assert apply(relu(), apply(operator(), X, Y)) == apply(relu(), apply(operator(), Y, X))


def test_digests_of_different_graphs_differ():
    values = [
        apply(concat(axis=0), X, Y),
        apply(concat(axis=0), Y, X),
        apply(concat(axis=1), X, Y),
        apply(softmax(axis=0), X),
        apply(softmax(axis=1), X),
        apply(softmax(axis=1), Y),
        apply(scale(factor=2.0), X),
        apply(scale(factor=3.0), X),
        apply(split(axis=0, at=1), X),
        Value(apply(split(axis=0, at=1), X).node, 1),
        apply(add(), X, X),
        apply(add(), X, Y),
        leaf("weight", "x", (4, 6)),
        leaf("input", "x", (4, 7)),
        leaf("input", "x", (4, 6), below=3),
        parse_graph("x = input[4/2, 6]\nreturn x").outputs[0],
        tensor("x", 2),
        X,
        Y,
    ]
    assert len({Graph((value,)).digest for value in values}) == len(values)
    assert len(set(values)) == len(values)
    assert Graph((X, Y)).digest != Graph((Y, X)).digest


def test_digests_are_the_same_in_every_process():
    # Plan files hold these digests: a change makes old plans unreadable.
    graph = Graph((apply(matmul(), X, leaf("weight", "w", (6, 3))),))
    assert graph.digest == "bc7960d8b1f5b9352122e8c9"


def test_replace_shares_the_rest():
    kept = apply(relu(), X)
    graph = Graph((apply(add(), kept, apply(scale(factor=2.0), Y)), kept))
    new = graph.replace({apply(scale(factor=2.0), Y): Y})
    assert new.outputs == (apply(add(), kept, Y), kept)
    assert new.outputs[1].node is kept.node
    assert new.outputs[0].node.inputs[0].node is kept.node
    assert graph.replace({tensor("z", 2): X}).outputs[0].node is graph.outputs[0].node
    assert graph.replace({graph.outputs[0]: X}).outputs == (X, kept)


def test_replace_one_output_of_two():
    parts = apply(split(axis=1, at=2), X).node
    graph = Graph((apply(relu(), Value(parts, 0)), apply(relu(), Value(parts, 1))))
    new = graph.replace({Value(parts, 0): Y})
    assert new.outputs == (apply(relu(), Y), apply(relu(), Value(parts, 1)))


@given(graphs(), st.data())
def test_replace_there_and_back(graph: Graph, data: st.DataObject):
    node = data.draw(st.sampled_from(graph.nodes))
    value, other = node.value(), tensor("other", node.types[0].rank)
    there = graph.replace({value: other})
    assert there.replace({other: value}) == graph


def test_deep_graphs():
    value = leaf("input", "x", (2, 2))
    for i in range(5000):
        value = apply(relu() if i % 2 else scale(factor=0.5), value)
    assert value.type.shape == (2, 2)
    graph = Graph((apply(sum_loss(), value),))
    assert sys.getrecursionlimit() < 5000 < len(graph.nodes)
    graph.check()
    assert len(graph.users) == len(graph.nodes)
    assert parse_graph(print_graph(graph)) == graph
    assert len(graph.replace({X: Y}).nodes) == len(graph.nodes)
    assert graph.replace({leaf("input", "x", (2, 2)): leaf("input", "y", (2, 2))}) != graph
    assert "5000" not in repr(graph)


def test_ranks_of_deep_graphs():
    node = X.node
    for _ in range(5000):
        node = Node(relu(), (node.value(),))
    assert sys.getrecursionlimit() < 5000
    assert node.ranks == (2,)


def test_wrong_number_of_operands():
    with pytest.raises(OperatorError) as caught:
        Node(matmul(), (X,))
    assert (caught.value.operator, caught.value.operand) == ("matmul", "*")
    assert caught.value.problem == "1 operands, expected 2"


def test_the_tensor_of_a_rule_has_no_type():
    value = apply(partition(dim=0, degree=2), tensor("x", 2))
    with pytest.raises(OperatorError, match="the tensor of a rule has no type"):
        _ = value.type
    with pytest.raises(OperatorError, match="the tensor of a rule has no type"):
        Graph((value,)).check()
