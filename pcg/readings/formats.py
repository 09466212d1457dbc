"""The values that stay wide (float32) if a step computes in a narrow number format.

Problem: bf16 has 8 bits of precision, and fp16 a small range. Matrix products tolerate both, since
they accumulate in float32. Positions, angles, statistics and losses do not. Method: one pass over
the graph. A value is wide if one of these holds:

- it depends on no weight: data, ids, masks, positions, and values computed from these alone;
- it is a single number, such as the loss;
- its operator takes logarithms, or reduces its operand to fewer elements, as a mean or a sum does,
  unless it slides windows or is a matrix product;
- it is the error of a prediction: a sum of the prediction and of data of as many elements, from
  which element-wise operators and reductions alone make a single number. Near a minimum the two
  cancel, and a narrow difference would be mostly rounding error;
- its operator is no matrix product, and of its operands that depend on a weight, those with the
  most elements are wide.

All other values are narrow. Complexity: linear in the graph. The rules are heuristic, but the
result is used consistently: the search counts bytes by it, and the runtime computes by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from pcg.graph.graph import Graph, Node, Value
from pcg.language.expr import Add, Apply, Const, Expr, Mul, walk
from pcg.readings.kind import kind_of, passes_gradients
from pcg.readings.saved import view_of
from pcg.readings.work import gradient_nodes
from pcg.types.operator import Call

WIDENING = frozenset({"log"})
"""Functions whose results lose too much precision in a narrow format."""
DIFFERING = frozenset({"add", "subtract"})
"""Operators that compare a prediction with data."""


@lru_cache(maxsize=16)
def wide_values(graph: Graph) -> frozenset[Value]:
    """Return the values of a graph that stay wide."""
    trained = gradient_nodes(graph)
    wide: set[Value] = _errors(graph, trained)
    for node in graph.nodes:
        if node not in trained:
            wide.update(node.outputs)
        elif not node.is_leaf:
            wide.update(_widened(node, trained, wide))
    return frozenset(wide)


@lru_cache(maxsize=16)
def held_wide(graph: Graph) -> frozenset[Value]:
    """Return the values that are held with the bytes of wide elements: wide values, and operands of
    operators with wide results, which compute on wide copies."""
    wide = wide_values(graph)
    readers = (n for n in graph.operators if not n.is_parallel and not wide.isdisjoint(n.outputs))
    return wide.union(*(_sources(reader) for reader in readers))


def _sources(node: Node) -> Iterable[Value]:
    """Yield an operator's operands, and the values of which they are views or moved copies."""
    for value in _operands(node):
        shown: Value | None = value
        while shown is not None:
            yield shown
            shown = _shown(shown)


def _shown(value: Value) -> Value | None:
    node = value.node
    if node.is_leaf:
        return None
    of = 0 if node.is_parallel else view_of(node, value.port)
    return None if of is None else node.inputs[of]


def _widened(node: Node, trained: frozenset[Node], wide: set[Value]) -> Iterable[Value]:
    """Return the wide outputs of an operator that depends on a weight."""
    if node.is_parallel or node.is_join:
        return node.outputs if wide.issuperset(node.inputs) else ()
    operands = [value for value in _operands(node) if value.node in trained]
    most = max((_elements(value) for value in operands), default=0)
    kind = kind_of(node)
    if kind != "contraction":
        widest = [value for value in operands if _elements(value) == most]
        if wide.issuperset(widest) or _takes_logarithms(node):
            return node.outputs
    has_windows = bool(node.operator_call.typing(_ranks(node)).windows)
    reduces = kind == "reduction" and not has_windows
    return [v for v in node.outputs if not v.type.rank or (reduces and _elements(v) < most)]


def _errors(graph: Graph, trained: frozenset[Node]) -> set[Value]:
    """Return the differences of predictions and data from which a single number is made, such as a
    mean of squares."""
    read_on: set[Value] = set()  # read by matrix products, or returned by the graph as tensors
    read_on.update(value for value in graph.outputs if value.type.rank)
    errors: set[Value] = set()
    for node in reversed(graph.operators):
        is_product = not (node.is_parallel or node.is_join) and kind_of(node) == "contraction"
        if is_product or not read_on.isdisjoint(node.outputs):
            read_on.update(node.inputs)
        elif node in trained and node.name in DIFFERING:
            sizes = {(_elements(value), value.node in trained) for value in node.inputs}
            of = _elements(node.outputs[0])
            errors.update(node.outputs if sizes == {(of, True), (of, False)} else ())
    return errors


def _elements(value: Value) -> int:
    return value.type.elements


def _takes_logarithms(node: Node) -> bool:
    outputs = node.operator_call.instance(_ranks(node)).outputs
    parts = (part for output in outputs for part in walk(output.body))
    return any(isinstance(part, Apply) and part.function in WIDENING for part in parts)


def _operands(node: Node) -> list[Value]:
    """Return the operands to which gradients pass. Others give shapes, positions or choices."""
    return [node.inputs[i] for i in _passing(node.operator_call, _ranks(node))]


@lru_cache(maxsize=4096)
def _passing(call: Call, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return these operands by position."""
    operands = range(len(ranks))
    bodies = (output.body for output in call.instance(ranks).outputs)
    terms = (term for body in bodies for term in (body.terms if isinstance(body, Add) else [body]))
    passing = (passes_gradients(term, operands) for term in terms if not _is_nothing(term))
    return tuple(sorted(frozenset[int]().union(*passing)))


def _is_nothing(term: Expr) -> bool:
    """Whether a term is 0 times an operand, which is read for its shape only."""
    return isinstance(term, Mul) and Const(Fraction(0)) in term.factors


def _ranks(node: Node) -> tuple[int, ...]:
    return tuple(value.type.rank for value in node.inputs)
