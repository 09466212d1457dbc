"""Pairs of graphs over the same inputs, and graphs rebuilt node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from pcg.graph.graph import Graph, Node, Value
from pcg.language.poly import Poly
from pcg.types.operator import Call

Outputs = tuple[Value, ...]
"""The outputs of a graph, for example of one side of a rule."""
GraphPair = tuple[Outputs, Outputs]
"""The left and the right side of an equality, with the same inputs and paired outputs."""


MOST_SIDES = 1 << 16
"""The most sides of rules whose graphs are cached."""


@lru_cache(maxsize=MOST_SIDES)
def side(outputs: Outputs) -> Graph:
    """Return the graph of a side of a rule, the same object for equal outputs.

    A search asks again and again for the nodes of all rules of a library, and a graph caches them.
    """
    return Graph(outputs)


def both(pair: GraphPair) -> Graph:
    """Return both sides as one graph."""
    return side((*pair[0], *pair[1]))


def calls(graph: Graph) -> Iterator[Call]:
    """Yield the operator calls of a graph, operands before their users."""
    return (node.call for node in graph.nodes if isinstance(node.call, Call))


def symbolic_attributes(graph: Graph) -> Iterator[tuple[Call, str, Poly]]:
    """Yield the symbolic attributes of a graph: the call, the attribute's name and its value."""
    for call in calls(graph):
        for name, value in call.attributes:
            if isinstance(value, Poly):
                yield call, name, value


def ports(node: Node) -> Outputs:
    """Return the outputs of a node, without inferring types."""
    count = 1 if node.is_leaf else len(node.operator_call.operator.outputs)
    return tuple(Value(node, port) for port in range(count))


def remade(graph: Graph, make: Callable[[Node, Outputs], Node]) -> Outputs:
    """Return a graph with every node rebuilt by ``make`` from the node and its new operands."""
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        new[node] = make(node, tuple(Value(new[v.node], v.port) for v in node.inputs))
    return tuple(Value(new[v.node], v.port) for v in graph.outputs)


def halves(outputs: Outputs) -> GraphPair:
    """Return the two sides of a pair, given the outputs of ``both``."""
    middle = len(outputs) // 2
    return outputs[:middle], outputs[middle:]


def with_polynomials(call: Call, values: Mapping[str, Poly]) -> Call:
    """Return the call with polynomials in the place of symbols in its attributes."""
    attributes = tuple(
        (name, value.substitute(values) if isinstance(value, Poly) else value)
        for name, value in call.attributes
    )
    return Call(call.operator, attributes)


def with_numbers(call: Call, numbers: Mapping[str, float]) -> Call:
    """Return the call with numbers for all symbols in its attributes. Raises KeyError for a symbol
    without a number."""
    attributes = tuple(
        (name, value.at(numbers) if isinstance(value, Poly) else value)
        for name, value in call.attributes
    )
    return Call(call.operator, attributes) if attributes != call.attributes else call
