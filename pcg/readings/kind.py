"""Classification of operators by their equations: contraction, reduction or pointwise work."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Literal

from pcg.graph.graph import Node
from pcg.language.expr import (
    Access,
    Apply,
    Expr,
    Guard,
    IndexValue,
    Max,
    Mul,
    Sum,
    accesses,
    children,
    walk,
)
from pcg.language.functions import FUNCTIONS
from pcg.language.poly import Poly
from pcg.readings.torch_work import is_contraction
from pcg.types.operator import Call

OperatorKind = Literal["contraction", "reduction", "pointwise"]
"""The kind of an operator for a device. Contractions are sums of products whose factors are used
again and again, as in matmul and convolution; matrix units compute these. Reductions are other sums
and maxima. The rest, with look-ups, is pointwise."""
WorkKind = OperatorKind | Literal["attention", "update", "function"]
"""The kind of work of a device in a step: an operator, with attention in one kernel as a kind of
its own; the update of a weight once its gradient is complete; or the arithmetic of functions such
as an exponential, in whatever operator."""
ATTENTION = frozenset({"attention", "masked_attention", "causal_attention"})
"""Contractions whose intermediate results stay on the chip."""


def kind_of(node: Node) -> OperatorKind:
    """Return the kind of a compute operator."""
    return call_kind(node.operator_call, tuple(value.type.rank for value in node.inputs))


def work_of(node: Node) -> WorkKind:
    """Return the kind of work of a compute operator."""
    return "attention" if node.name in ATTENTION else kind_of(node)


@lru_cache(maxsize=4096)
def call_kind(call: Call, ranks: tuple[int, ...]) -> OperatorKind:
    """Return the kind of a call on operands of these ranks."""
    if is_contraction(call.operator):
        return "contraction"
    equation = call.instance(ranks)
    parts = [part for output in equation.outputs for part in walk(output.body)]
    indices = {name for output in equation.outputs for dim in output.dims for name in dim.names}
    indices |= {part.var for part in parts if isinstance(part, (Sum, Max))}
    if any(isinstance(part, Sum) and _contracts(part, indices) for part in parts):
        return "contraction"
    sums = (part for part in parts if isinstance(part, (Sum, Max)))
    reduces = any(not (isinstance(part, Sum) and _moves(part)) for part in sums)
    return "reduction" if reduces else "pointwise"


def _contracts(value: Sum, indices: set[str]) -> bool:
    """Whether a sum is over products of which two factors each lack an index. Both are then read
    again and again, so operations grow faster than the elements that are read."""
    body: Expr = value
    while isinstance(body, Sum):
        if _moves(body):
            return False
        body = body.body
    if not isinstance(body, Mul):
        return False
    factors = [free_symbols(factor) & indices for factor in body.factors if reads(factor)]
    all_indices = frozenset[str]().union(*factors)
    return sum(factor < all_indices for factor in factors) > 1


def look_up(value: Sum) -> frozenset[str] | None:
    """Return the symbols that determine the only summand that is not 0, or None."""
    factors = value.body.factors if isinstance(value.body, Mul) else (value.body,)
    for factor in factors:
        if not (isinstance(factor, Apply) and factor.function == "eq"):
            continue
        for this, other in (factor.args, factor.args[::-1]):
            same = isinstance(this, IndexValue) and this.index == Poly.of(value.var)
            if same and value.var not in free_symbols(other):
                return free_symbols(other)
    return None


def scatter_target(value: Sum) -> tuple[str, frozenset[str]] | None:
    """Return the index at which a sum puts each summand, and the symbols that determine its value.

    The summand is 0 at all other values of the index. None for a sum without such an index.
    """
    factors = value.body.factors if isinstance(value.body, Mul) else (value.body,)
    for factor in factors:
        if not (isinstance(factor, Apply) and factor.function == "eq"):
            continue
        for this, other in (factor.args, factor.args[::-1]):
            place = this.index.symbol if isinstance(this, IndexValue) else None
            named = free_symbols(other)
            if place is not None and value.var in named and place not in named:
                return place, named
    return None


def _moves(value: Sum) -> bool:
    """Whether a sum needs no arithmetic but moves elements: it selects one summand, or puts each of
    them in its place."""
    return bool(look_up(value)) or scatter_target(value) is not None


def is_epilogue(value: Expr) -> bool:
    """Whether a value is a function of a sum whose slope follows from the function's value. Then
    back-propagation begins with a pass that multiplies the gradient by the slope."""
    if not isinstance(value, Apply) or FUNCTIONS[value.function].slope != "value":
        return False
    return any(isinstance(part, Sum) and not look_up(part) for part in walk(value))


def free_symbols(value: Expr) -> frozenset[str]:
    """Return the symbols that a value depends on, sizes included."""
    match value:
        case Access(index=index):
            return frozenset(symbol for position in index for symbol in position.symbols)
        case IndexValue(index) | Guard(index):
            return index.symbols
        case Sum(var, _, body):
            return free_symbols(body) - {var}
        case Max(var, _, guards, body):
            return free_symbols(body).union(*(guard.symbols for guard in guards)) - {var}
        case _:
            return frozenset(symbol for child in children(value) for symbol in free_symbols(child))


def passes_gradients(value: Expr, needs: Collection[int]) -> frozenset[int]:
    """Return the operands among ``needs``, by position, whose gradients pass through a value. None
    pass through a test for equality."""
    if isinstance(value, Access):
        return frozenset({value.operand}.intersection(needs))
    if isinstance(value, Apply) and value.function == "eq":
        return frozenset()
    return frozenset(o for child in children(value) for o in passes_gradients(child, needs))


def reads(value: Expr) -> bool:
    """Whether a value depends on an operand."""
    return next(accesses(value), None) is not None
