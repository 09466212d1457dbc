"""Arithmetic of the equation reader, which keeps indices and sizes distinct from values.

An index (``IndexValue``) may bound a sum or be compared. Sums and products of indices are indices
too. Combined with a value, an index becomes a value. ``final`` ends the distinction.
"""

from __future__ import annotations

from fractions import Fraction

from pcg.language.expr import Add, Apply, Const, Expr, Guard, IndexValue, Mul
from pcg.language.poly import Poly
from pcg.language.template import EquationError


def compared(operator: str, left: Expr, right: Expr) -> Expr:
    """Return a comparison of indices as guards. ``==`` may also compare values."""
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
    """Return the guards of a condition. Raises EquationError if it has any other part."""
    parts = condition.factors if isinstance(condition, Mul) else (condition,)
    guards = tuple(part for part in parts if isinstance(part, Guard))
    if len(guards) < len(parts):
        raise EquationError("a condition compares two indices with <, <=, >, >= or ==")
    return guards


def otherwise(guards: tuple[Guard, ...], other: Expr) -> tuple[Expr, ...]:
    """Return terms that add up to ``other`` where not all guards hold, and to 0 elsewhere.

    There is one term for each guard: it counts where this guard is the first that does not hold.
    """
    return tuple(Mul((*guards[:i], guard.negated(), other)) for i, guard in enumerate(guards))


def number(value: int) -> Expr:
    """Return an integer, which may be a size."""
    return IndexValue(Poly.of(value))


def plus(left: Expr, right: Expr) -> Expr:
    """Return the sum. It is an index if both operands are."""
    if isinstance(left, IndexValue) and isinstance(right, IndexValue):
        return IndexValue(left.index + right.index)
    return Add((final(left), final(right)))


def times(left: Expr, right: Expr) -> Expr:
    """Return the product. It is an index if both operands are."""
    if isinstance(left, IndexValue) and isinstance(right, IndexValue):
        return IndexValue(left.index * right.index)
    return Mul((final(left), final(right)))


def reciprocal(value: Expr) -> Expr:
    """Return 1/value. For a product of sizes it is the product of their reciprocals."""
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
    """Return an expression as a value. An integer becomes a constant, and is no size any more."""
    if isinstance(value, IndexValue) and (constant := value.index.constant) is not None:
        return Const(Fraction(constant))
    return value
