"""Pairs of graphs over the same inputs, and graphs that are made anew node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from pcg.graph.graph import Graph, Node, Value
from pcg.language.poly import Poly
from pcg.types.operator import Call

Outputs = tuple[Value, ...]
"""The outputs of a graph, such as one side of a rule."""
GraphPair = tuple[Outputs, Outputs]
"""The left and the right side of an equality: the same inputs, and paired outputs."""


MOST_SIDES = 1 << 16
"""Sides of rules of which what was worked out is remembered."""


@lru_cache(maxsize=MOST_SIDES)
def side(outputs: Outputs) -> Graph:
    """The graph of a side of a rule, the same one for equal sides: a search asks for the nodes of
    a library's rules, in all of their forms, again and again."""
    return Graph(outputs)


def both(pair: GraphPair) -> Graph:
    """Both sides as one graph."""
    return side((*pair[0], *pair[1]))


def calls(graph: Graph) -> Iterator[Call]:
    """The operators of a graph, operands before their users."""
    return (node.call for node in graph.nodes if isinstance(node.call, Call))


def symbolic_attributes(graph: Graph) -> Iterator[tuple[Call, str, Poly]]:
    """The attributes of a graph that are symbolic: of which operator, which, and what."""
    for call in calls(graph):
        for name, value in call.attributes:
            if isinstance(value, Poly):
                yield call, name, value


def ports(node: Node) -> Outputs:
    """The outputs of a node."""
    count = 1 if node.is_leaf else len(node.operator_call.operator.outputs)
    return tuple(Value(node, port) for port in range(count))


def remade(graph: Graph, make: Callable[[Node, Outputs], Node]) -> Outputs:
    """The graph with every node made anew: ``make`` is given the node and its new operands."""
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        new[node] = make(node, tuple(Value(new[v.node], v.port) for v in node.inputs))
    return tuple(Value(new[v.node], v.port) for v in graph.outputs)


def halves(outputs: Outputs) -> GraphPair:
    """The sides of a pair of which ``both`` is the graph with these outputs."""
    middle = len(outputs) // 2
    return outputs[:middle], outputs[middle:]


def with_polynomials(call: Call, values: Mapping[str, Poly]) -> Call:
    """The call with polynomials for symbols in its attributes."""
    attributes = tuple(
        (name, value.substitute(values) if isinstance(value, Poly) else value)
        for name, value in call.attributes
    )
    return Call(call.operator, attributes)


def with_numbers(call: Call, numbers: Mapping[str, float]) -> Call:
    """The call with numbers for all symbols in its attributes; KeyError names one without."""
    attributes = tuple(
        (name, value.at(numbers) if isinstance(value, Poly) else value)
        for name, value in call.attributes
    )
    return Call(call.operator, attributes) if attributes != call.attributes else call
