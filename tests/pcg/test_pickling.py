"""Graphs between processes: equal graphs, and operators of the same kind."""

from __future__ import annotations

import pickle
from dataclasses import replace

from pcg.graph.graph import Graph, apply, leaf
from pcg.graph.opaque import Opaque
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS
from pcg.plan.text import parse_graph
from pcg.types.operator import Call, Operator

GRAPH = """
x = input[8, 12]
w = weight[12, 16]
h = relu(matmul(partition(x, dim=0, degree=2), replicate(w, degree=2)))
return reduce(mean_loss(scale(h, factor=0.5)), degree=2)
"""


def again(value):
    return pickle.loads(pickle.dumps(value))


def test_unpickled_graph_has_the_same_digest_and_types():
    graph = parse_graph(GRAPH)
    graph.check()
    remade = again(graph)
    assert isinstance(remade, Graph)
    assert remade == graph
    assert remade.digest == graph.digest
    assert [n.types for n in remade.nodes] == [n.types for n in graph.nodes]


def test_a_deep_graph_is_pickled_with_what_refers_to_its_operators():
    """A chain of thousands of operators would be too deep for recursion."""
    value = leaf("input", "x", (8, 8))
    for _ in range(3000):
        value = apply(Call(OPERATORS["relu"]), value)
    graph = Graph((value,))
    remade, kept = again((graph, {node: number for number, node in enumerate(graph.nodes)}))
    assert remade.digest == graph.digest
    assert [kept[node] for node in remade.nodes] == [*range(len(graph.nodes))]


def test_operator_of_unity_is_unpickled_as_the_same_object():
    for operator in OPERATORS.values():
        assert again(operator) is operator


def test_other_operator_is_pickled_by_its_definition():
    own = OPERATORS["relu"]
    posing = replace(own, equation=own.equation.replace("relu(", "exp("))
    assert posing != own, "the equation has another function"
    assert again(posing) == posing
    assert again(posing).identity == posing.identity != own.identity
    for operator in STAND_INS.values():
        assert again(operator) == operator
        assert again(operator) is again(operator), "read once a process"


def test_a_definition_goes_without_the_kernel():
    """The kernel of an operator of a user's file may be any function, such as one without a
    name."""
    operator = Operator("twice", "out[i] = x[i] + x[i]", kernel=lambda _task, x: 2 * x)
    assert again(operator) == operator
    assert again(operator).identity == operator.identity
    assert again(operator).kernel is None


def test_unpickled_opaque_operator_stays_opaque():
    opaque = Opaque("topk", OPERATORS["relu"].equation, function="aten.topk.default(x0)")
    assert type(again(opaque)) is Opaque
    assert again(opaque) == opaque
