"""Folds operators in a decomposition: replaces their graphs by the operators again.

Problem: a graph of primitive operators stores tensors that a single kernel would not. The graph of
a cross entropy has five tensors as large as the logits. It contains the graphs of a logsumexp and
of a negative log-likelihood, whose kernels store none of these tensors.

Method: while the decomposition of an operator occurs in the graph, it is replaced by the operator.
Only operators are folded whose decompositions compute element-wise tensors with more axes than the
output; others would save nothing.
Exact: a graph is replaced by an equal one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pcg.graph.graph import Graph, Value, apply
from pcg.graph.pairs import GraphPair
from pcg.readings.saved import is_pointwise

Patterns = Callable[[], Sequence[GraphPair]]
"""A function that returns operators, each with its decomposition."""


def folds(pair: GraphPair) -> bool:
    """Whether an operator saves tensors that its decomposition stores: element-wise ones with more
    axes than the output."""
    (left, *further), right = pair
    operators = Graph(right).operators
    return not further and any(is_pointwise(n) and n.ranks[0] > left.rank for n in operators)


def folded(pair: GraphPair, patterns: Patterns) -> GraphPair | None:
    """A decomposition with all operators in it folded; None if there are none. ``patterns``: the
    operators that may be folded."""
    left, right = pair
    own, before = left[0].node.name, right
    while (occurrence := next(_occurrences(right, own, patterns()), None)) is not None:
        old, new = occurrence
        right = Graph(right).replace({old: new}).outputs
    return None if right == before else (left, right)


def _occurrences(
    right: Sequence[Value], own: str, patterns: Sequence[GraphPair]
) -> Iterator[tuple[Value, Value]]:
    """Yield the values that another operator than ``own`` computes, the last ones first, each with
    the value of that operator to replace it."""
    for node in reversed(Graph(tuple(right)).operators):
        for (left,), (graph,) in patterns:
            if left.node.name == own:
                continue
            operands: dict[Value, Value] = {}
            if _matches(graph, node.value(), operands) and operands.keys() >= set(left.node.inputs):
                inputs = (operands[value] for value in left.node.inputs)
                yield node.value(), apply(left.node.operator_call, *inputs)


def _matches(pattern: Value, host: Value, operands: dict[Value, Value]) -> bool:
    """Whether a value matches a pattern. The values of the pattern's inputs are added to
    ``operands``."""
    if pattern.node.is_leaf:
        return pattern.rank == host.rank and operands.setdefault(pattern, host) == host
    if host.node.is_leaf or (pattern.node.call, pattern.port) != (host.node.call, host.port):
        return False
    pairs = zip(pattern.node.inputs, host.node.inputs, strict=True)
    return all(_matches(operand, host_operand, operands) for operand, host_operand in pairs)
