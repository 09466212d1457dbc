"""Decompositions in which smaller operators are found again.

Problem: a graph of primitive operators makes tensors that one kernel would never store: the graph
of a cross entropy has five tensors as large as the logits. It holds the graphs of other operators,
of a logsumexp and of a negative log-likelihood, whose kernels store none of them.

Method: where the decomposition of one operator occurs in that of another, it becomes the operator
again, as long as one occurs. What is folded so reduces, and makes tensors element by element that
have more axes than its output; others would save nothing. Exact: equal graphs for equal graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pcg.graph.graph import Graph, Value, apply
from pcg.graph.pairs import GraphPair
from pcg.readings.saved import is_pointwise

Patterns = Callable[[], Sequence[GraphPair]]
"""Operators, each with its decomposition."""


def folds(pair: GraphPair) -> bool:
    """Whether an operator saves tensors that its decomposition makes."""
    (left, *more), right = pair
    made = Graph(right).operators
    return not more and any(is_pointwise(n) and n.ranks[0] > left.rank for n in made)


def folded(pair: GraphPair, patterns: Patterns) -> GraphPair | None:
    """A decomposition with the operators in it folded; None where there are none. ``patterns``:
    operators that fold."""
    left, right = pair
    own, before = left[0].node.name, right
    while (occurrence := next(_occurrences(right, own, patterns()), None)) is not None:
        old, new = occurrence
        right = Graph(right).replace({old: new}).outputs
    return None if right == before else (left, right)


def _occurrences(
    right: Sequence[Value], own: str, patterns: Sequence[GraphPair]
) -> Iterator[tuple[Value, Value]]:
    """The values that an operator other than ``own`` computes, the last ones first, each as it
    is made then."""
    for node in reversed(Graph(tuple(right)).operators):
        for (left,), (graph,) in patterns:
            if left.node.name == own:
                continue
            operands: dict[Value, Value] = {}
            if _is(graph, node.value(), operands) and operands.keys() >= set(left.node.inputs):
                of = (operands[value] for value in left.node.inputs)
                yield node.value(), apply(left.node.operator_call, *of)


def _is(pattern: Value, host: Value, operands: dict[Value, Value]) -> bool:
    """Whether a value is made as a pattern says, and of what: ``operands``, by input."""
    if pattern.node.is_leaf:
        return pattern.rank == host.rank and operands.setdefault(pattern, host) == host
    if host.node.is_leaf or (pattern.node.call, pattern.port) != (host.node.call, host.port):
        return False
    pairs = zip(pattern.node.inputs, host.node.inputs, strict=True)
    return all(_is(one, other, operands) for one, other in pairs)
