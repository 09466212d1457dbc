"""Which values stay wide (float32) where a step computes in a narrow number format.

Problem: bf16 has 8 bits of precision and fp16 a small range. Products of matrices bear both, as
they add up in float32; places, angles, statistics and losses do not.
Method: one pass over the graph. A value is wide if one of these holds:

- no weight has a part in it: data, ids, masks, positions, and what is computed of these alone;
- it is a single number, such as the loss;
- its operator takes logarithms, or reduces its operand to fewer elements, as a mean or a sum does,
  other than by windows or as a product of matrices;
- its operator is no product of matrices, and of its operands with a weight in them those that have
  most elements are wide.

All others are narrow. Linear in the graph. The rules are a choice, and what they choose is stated:
the search counts bytes by them, and the runtime computes so.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from pcg.graph.graph import Graph, Node, Value
from pcg.language.expr import Apply, walk
from pcg.readings.kind import kind_of, passes_gradients
from pcg.readings.work import needing_gradients
from pcg.types.operator import Call

WIDENING = frozenset({"log"})
"""Functions whose results lose too much in a narrow format."""


@lru_cache(maxsize=16)
def wide_values(graph: Graph) -> frozenset[Value]:
    """The values of a graph that stay wide."""
    return wide_among(graph.nodes)


def wide_among(nodes: Iterable[Node]) -> frozenset[Value]:
    """The values of some nodes that stay wide. ``nodes``: in order, with all that they read."""
    ordered = tuple(nodes)
    trained = needing_gradients((node, [v.node for v in node.inputs]) for node in ordered)
    wide: set[Value] = set()
    for node in ordered:
        if node not in trained:
            wide.update(node.outputs)
        elif not node.is_leaf:
            wide.update(_widened(node, trained, wide))
    return frozenset(wide)


def _widened(node: Node, trained: frozenset[Node], wide: set[Value]) -> Iterable[Value]:
    """The wide outputs of an operator with a weight in it."""
    if node.is_parallel or node.is_join:
        return node.outputs if wide.issuperset(node.inputs) else ()
    passing = _passing(node.operator_call, _ranks(node))
    operands = [node.inputs[i] for i in passing if node.inputs[i].node in trained]
    most = max((_elements(value) for value in operands), default=0)
    kind = kind_of(node)
    if kind != "contraction":
        widest = [value for value in operands if _elements(value) == most]
        if wide.issuperset(widest) or _takes_logarithms(node):
            return node.outputs
    has_windows = bool(node.operator_call.typing(_ranks(node)).windows)
    reduces = kind == "reduction" and not has_windows
    return [v for v in node.outputs if not v.type.rank or (reduces and _elements(v) < most)]


def _elements(value: Value) -> int:
    return value.type.elements


def _takes_logarithms(node: Node) -> bool:
    outputs = node.operator_call.instance(_ranks(node)).outputs
    parts = (part for output in outputs for part in walk(output.body))
    return any(isinstance(part, Apply) and part.function in WIDENING for part in parts)


@lru_cache(maxsize=4096)
def _passing(call: Call, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The operands to which gradients pass: of others only shapes, places or choices matter."""
    every = range(len(ranks))
    outputs = call.instance(ranks).outputs
    return tuple(sorted(frozenset(o for out in outputs for o in passes_gradients(out.body, every))))


def _ranks(node: Node) -> tuple[int, ...]:
    return tuple(value.type.rank for value in node.inputs)
