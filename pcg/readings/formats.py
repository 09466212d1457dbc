"""Which values stay wide (float32) where a step computes in a narrow number format.

Problem: bf16 has 8 bits of precision and fp16 a small range. Products of matrices bear both, as
they add up in float32; places, angles, statistics and losses do not.
Method: one pass over the graph. A value is wide if one of these holds:

- no weight has a part in it: data, ids, masks, positions, and what is computed of these alone;
- it is a single number, such as the loss;
- its operator takes logarithms, or reduces its operand to fewer elements, as a mean or a sum does,
  other than by windows or as a product of matrices;
- it is the error of a prediction, a sum of it and of data of as many elements (less what was
  wanted), of which elementwise work and reductions alone make a single number: near a minimum the
  two cancel, and what is left of a narrow difference is rounding;
- its operator is no product of matrices, and of its operands with a weight in them those that have
  most elements are wide.

All others are narrow. Linear in the graph. The rules are a choice, and what they choose is stated:
the search counts bytes by them, and the runtime computes so.
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
"""Functions whose results lose too much in a narrow format."""
DIFFERING = frozenset({"add", "subtract"})
"""Operators by which what was predicted meets what was wanted."""


@lru_cache(maxsize=16)
def wide_values(graph: Graph) -> frozenset[Value]:
    """The values of a graph that stay wide."""
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
    """The values that take wide elements' bytes while they are held: those that are wide, and those
    that an operator with wide results reads, which computes on a wide copy of them."""
    wide = wide_values(graph)
    readers = (n for n in graph.operators if not n.is_parallel and not wide.isdisjoint(n.outputs))
    return wide.union(*(_behind(reader) for reader in readers))


def _behind(node: Node) -> Iterable[Value]:
    """The operands of an operator, and what they are views of or were brought from."""
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
    """The wide outputs of an operator with a weight in it."""
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
    """What predictions and data differ by, and of which a single number is made, as of a mean of
    squares."""
    read_on: set[Value] = set()  # by products of matrices, or as a tensor that the graph returns
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
    """The operands to which gradients pass: of others only shapes, places or choices matter."""
    return [node.inputs[i] for i in _passing(node.operator_call, _ranks(node))]


@lru_cache(maxsize=4096)
def _passing(call: Call, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Such operands, by position."""
    every = range(len(ranks))
    bodies = (output.body for output in call.instance(ranks).outputs)
    terms = (term for body in bodies for term in (body.terms if isinstance(body, Add) else [body]))
    passing = (passes_gradients(term, every) for term in terms if not _is_nothing(term))
    return tuple(sorted(frozenset[int]().union(*passing)))


def _is_nothing(term: Expr) -> bool:
    """Whether a term is 0 times an operand, which is there for its shape."""
    return isinstance(term, Mul) and Const(Fraction(0)) in term.factors


def _ranks(node: Node) -> tuple[int, ...]:
    return tuple(value.type.rank for value in node.inputs)
