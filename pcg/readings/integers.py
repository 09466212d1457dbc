"""The values of a graph that are integers for all inputs.

Problem: an id, which selects a row of a table, has to be an integer, and models compute with ids:
they shift labels, count positions, and mark labels to be ignored. Method: one pass over the graph.
A value is an integer if its equation makes it from integers by sums, products, maxima and choices,
or if a torch function rounds it or returns it as integers. Complexity: linear in the graph. Sound,
but not complete: quotients that happen to be integers are not found.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pcg.graph.graph import Graph, Value
from pcg.graph.opaque import TorchFunction
from pcg.language.expr import (
    Access,
    Add,
    Apply,
    Const,
    Expr,
    Guard,
    IndexValue,
    Max,
    Mul,
    Real,
    Sum,
)
from pcg.types.operator import Call

PLACES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("aten.argmax.default", "aten.argmin.default"), (0,)),
    **dict.fromkeys(("aten.argsort.default", "aten.argsort.stable"), (0,)),
    **dict.fromkeys(("aten.searchsorted.Tensor", "aten.bucketize.Tensor"), (0,)),
    **dict.fromkeys(("aten.sort.default", "aten.sort.stable", "aten.topk.default"), (1,)),
    **dict.fromkeys(("aten.max.dim", "aten.min.dim", "aten.kthvalue.default"), (1,)),
    **dict.fromkeys(("aten.median.dim", "aten.mode.default", "aten.cummax.default"), (1,)),
}
"""Torch functions with results that are positions, counted from 0, by port."""

ROUNDED = frozenset(f"aten.{name}.default" for name in ("ceil", "floor", "round", "trunc"))
"""Torch functions whose results are integers in the number format of their operand."""


def integer_values(graph: Graph) -> frozenset[Value]:
    """Return the values of a graph that are integers."""
    integers: set[Value] = set()
    for node in graph.nodes:
        if node.is_leaf:
            if node.leaf.below is not None:
                integers.add(node.value())
            continue
        operands = frozenset(i for i, value in enumerate(node.inputs) if value in integers)
        ranks = tuple(value.type.rank for value in node.inputs)
        ports = _integer_outputs(node.operator_call, ranks, operands)
        integers |= {node.value(port) for port in ports}
    return frozenset(integers)


@lru_cache(maxsize=4096)
def _integer_outputs(
    call: Call, ranks: tuple[int, ...], operands: frozenset[int]
) -> tuple[int, ...]:
    """Return the outputs of a call that are integers if these operands are."""
    operator = call.operator
    if isinstance(operator, TorchFunction):
        if operator.target in ROUNDED:
            return tuple(range(len(operator.writes)))
        return tuple(i for i, type_ in enumerate(operator.writes) if not type_.is_real)
    reals = {name for name in operator.reals if not _is_integer(call.values[name])}
    bodies = [output.body for output in call.instance(ranks).outputs]
    return tuple(i for i, body in enumerate(bodies) if _is_integral(body, operands, reals))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _is_integral(value: Expr, operands: frozenset[int], fractions: set[str]) -> bool:
    match value:
        case Access():
            return value.operand in operands
        case Const():
            return value.value.denominator == 1
        case Real():
            return value.name not in fractions
        case Add(parts) | Mul(parts):
            return all(_is_integral(part, operands, fractions) for part in parts)
        case Sum() | Max():
            return _is_integral(value.body, operands, fractions)
        case Apply("max" | "relu", args):
            return all(_is_integral(arg, operands, fractions) for arg in args)
        case Apply():
            return value.function == "eq"
        case IndexValue() | Guard():
            return True


def may_be(value: Value, number: int) -> bool:
    """Whether a value may contain a number. False only if all its elements are elements of inputs
    that cannot contain the number."""
    node = value.node
    if node.is_leaf:
        return node.leaf.below is None or node.leaf.least <= number < node.leaf.below
    if not node.inputs or not moves(node.operator_call, _ranks(value)):
        return True
    return any(may_be(operand, number) for operand in node.inputs)


def is_natural(value: Value) -> bool:
    """Whether a value is known to consist of integers from 0 on: counts and inputs of such integers
    that are moved, added, multiplied, or scaled by an integer."""
    node = value.node
    if node.is_leaf:
        return node.leaf.below is not None and node.leaf.least >= 0
    call = node.operator_call
    if isinstance(call.operator, TorchFunction):
        return value.port in PLACES.get(call.operator.target, ())
    numbers = [call.values[name] for name in call.operator.reals]
    if not all(isinstance(n, (int, float)) and _is_integer(n) and n >= 0 for n in numbers):
        return False
    bodies = [output.body for output in call.instance(_ranks(value)).outputs]
    return all(map(is_natural, node.inputs)) and all(map(_keeps_natural, bodies))


def _ranks(value: Value) -> tuple[int, ...]:
    return tuple(operand.type.rank for operand in value.node.inputs)


def _keeps_natural(body: Expr) -> bool:
    """Whether an equation makes natural numbers of natural numbers."""
    match body:
        case Access() | Real() | IndexValue() | Guard():
            return True
        case Const():
            return body.value.denominator == 1 and body.value >= 0
        case Add(parts) | Mul(parts):
            return all(map(_keeps_natural, parts))
        case Sum() | Max():
            return _keeps_natural(body.body)
        case Apply():
            return body.function == "eq"


@lru_cache(maxsize=4096)
def moves(call: Call, ranks: tuple[int, ...]) -> bool:
    """Whether an operator moves elements of its operands without changing them."""
    return all(_moved(output.body) for output in call.instance(ranks).outputs)


def _moved(value: Expr) -> bool:
    match value:
        case Access():
            return True
        case Add(parts):
            # The cases of an ``if``; a sum of two elements has no guards.
            return all(isinstance(part, Mul) and _moved(part) for part in parts)
        case Mul(parts):
            rest = [part for part in parts if not isinstance(part, Guard)]
            return len(rest) == 1 < len(parts) and _moved(rest[0])
        case _:
            return False
