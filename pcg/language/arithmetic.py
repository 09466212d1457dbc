"""Arithmetic of the equation reader, in which indices and sizes stay such while they can.

A value may be an index (``IndexValue``), which may bound a sum or stand in a comparison; together
with anything else it is a number like others. ``final`` ends that: what is left is a value.
"""

from __future__ import annotations

from fractions import Fraction

from pcg.language.expr import Add, Apply, Const, Expr, Guard, IndexValue, Mul
from pcg.language.poly import Poly
from pcg.language.template import EquationError


def compared(operator: str, left: Expr, right: Expr) -> Expr:
    """A comparison of indices as guards; ``==`` may compare values."""
    if not (isinstance(left, IndexValue) and isinstance(right, IndexValue)):
        if operator != "==":
            raise EquationError(f"{operator} compares indices, not values")
        return Apply("eq", (final(left), final(right)))
    difference = left.index - right.index
    match operator:
        case "<":
            return Guard(-difference - 1)
        case "<=":
            return Guard(-difference)
        case ">":
            return Guard(difference - 1)
        case ">=":
            return Guard(difference)
        case _:
            return Mul((Guard(difference), Guard(-difference)))


def guards_of(condition: Expr) -> tuple[Guard, ...]:
    """The guards that a condition is made of."""
    parts = condition.factors if isinstance(condition, Mul) else (condition,)
    guards = tuple(part for part in parts if isinstance(part, Guard))
    if len(guards) < len(parts):
        raise EquationError("a condition compares two indices with <, <=, >, >= or ==")
    return guards


def otherwise(guards: tuple[Guard, ...], other: Expr) -> tuple[Expr, ...]:
    """``other`` where not all guards hold, as one term for the first that does not."""
    return tuple(Mul((*guards[:i], guard.negated(), other)) for i, guard in enumerate(guards))


def number(value: int) -> Expr:
    """A whole number, which may be a size."""
    return IndexValue(Poly.of(value))


def plus(left: Expr, right: Expr) -> Expr:
    """The sum, an index if both are."""
    if isinstance(left, IndexValue) and isinstance(right, IndexValue):
        return IndexValue(left.index + right.index)
    return Add((final(left), final(right)))


def times(left: Expr, right: Expr) -> Expr:
    """The product, an index if both are."""
    if isinstance(left, IndexValue) and isinstance(right, IndexValue):
        return IndexValue(left.index * right.index)
    return Mul((final(left), final(right)))


def reciprocal(value: Expr) -> Expr:
    """1/value; of a product of sizes, the product of their reciprocals."""
    if not isinstance(value, IndexValue):
        return Apply("recip", (final(value),))
    if (constant := value.index.constant) is not None:
        if constant == 0:
            raise EquationError("division by zero")
        return Const(Fraction(1, constant))
    if len(value.index.terms) == 1:
        (monomial, coefficient) = value.index.terms[0]
        parts = [Apply("recip", (IndexValue(Poly.of(symbol)),)) for symbol in monomial]
        return Mul((Const(Fraction(1, coefficient)), *parts))
    return Apply("recip", (value,))


def final(value: Expr) -> Expr:
    """What is a value for good: a whole number is a constant then, and no size any more."""
    if isinstance(value, IndexValue) and (constant := value.index.constant) is not None:
        return Const(Fraction(constant))
    return value
