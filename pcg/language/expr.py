"""The expressions of the index language: the value of one element of an operator's output.

``pcg.language.language`` reads these trees from text, at known ranks and attributes. Shapes, types,
evaluation, symbolic meaning and cost are all derived from the same tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from pcg.language.poly import Poly


@dataclass(frozen=True)
class Const:
    """A rational number."""

    value: Fraction


@dataclass(frozen=True)
class Real:
    """A real attribute of the operator, such as the factor of ``scale``."""

    name: str


@dataclass(frozen=True)
class IndexValue:
    """An index or a size used as a number."""

    index: Poly


@dataclass(frozen=True)
class Access:
    """An element of an operand, at global indices."""

    operand: int
    index: tuple[Poly, ...]


@dataclass(frozen=True)
class Sum:
    """The sum over ``0 <= var < size``."""

    var: str
    size: Poly
    body: Expr


@dataclass(frozen=True)
class Max:
    """The greatest value of ``body`` over ``0 <= var < size`` where every guard is at least 0.

    Minus infinity if there is no such ``var``.
    """

    var: str
    size: Poly
    guards: tuple[Poly, ...]
    body: Expr


@dataclass(frozen=True)
class Add:
    terms: tuple[Expr, ...]


@dataclass(frozen=True)
class Mul:
    factors: tuple[Expr, ...]


@dataclass(frozen=True)
class Apply:
    """A scalar function of values, known by its name alone (``pcg.language.functions``)."""

    function: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Guard:
    """1 where ``index >= 0``, else 0."""

    index: Poly

    def negated(self) -> Guard:
        return Guard(-self.index - 1)


Expr = Const | Real | IndexValue | Access | Sum | Max | Add | Mul | Apply | Guard


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct sub-expressions."""
    match expr:
        case Sum(body=body) | Max(body=body):
            return (body,)
        case Add(terms=parts) | Mul(factors=parts) | Apply(args=parts):
            return parts
        case _:
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and all expressions in it, outer ones first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def indices(expr: Expr) -> tuple[Poly, ...]:
    """Return the indices and sizes of the expression itself, without those of its parts."""
    match expr:
        case IndexValue(index) | Guard(index) | Sum(size=index):
            return (index,)
        case Max(_, size, guards):
            return (size, *guards)
        case Access(index=index):
            return index
        case _:
            return ()


def accesses(expr: Expr) -> Iterator[Access]:
    """Yield all element accesses in the expression."""
    return (part for part in walk(expr) if isinstance(part, Access))


def substitute(expr: Expr, values: Mapping[str, Poly]) -> Expr:
    """Replace free index symbols. The values must not contain a summed index of ``expr``."""
    match expr:
        case IndexValue(index):
            return IndexValue(index.substitute(values))
        case Guard(index):
            return Guard(index.substitute(values))
        case Access(operand, index):
            return Access(operand, tuple(i.substitute(values) for i in index))
        case Sum(var, size, body):
            free = {name: value for name, value in values.items() if name != var}
            return Sum(var, size.substitute(values), substitute(body, free))
        case Max(var, size, guards, body):
            free = {name: value for name, value in values.items() if name != var}
            inside = tuple(guard.substitute(free) for guard in guards)
            return Max(var, size.substitute(values), inside, substitute(body, free))
        case Add(terms):
            return Add(tuple(substitute(t, values) for t in terms))
        case Mul(factors):
            return Mul(tuple(substitute(f, values) for f in factors))
        case Apply(function, args):
            return Apply(function, tuple(substitute(a, values) for a in args))
        case Const() | Real():
            return expr


def rename_binders(expr: Expr, name: Callable[[str], str]) -> Expr:
    """Return an equal expression with every summed index renamed."""
    match expr:
        case Sum(var, size, body):
            fresh = name(var)
            renamed = substitute(rename_binders(body, name), {var: Poly.of(fresh)})
            return Sum(fresh, size, renamed)
        case Max(var, size, guards, body):
            fresh = name(var)
            renamed = {var: Poly.of(fresh)}
            inside = tuple(guard.substitute(renamed) for guard in guards)
            return Max(fresh, size, inside, substitute(rename_binders(body, name), renamed))
        case Add(terms):
            return Add(tuple(rename_binders(t, name) for t in terms))
        case Mul(factors):
            return Mul(tuple(rename_binders(f, name) for f in factors))
        case Apply(function, args):
            return Apply(function, tuple(rename_binders(a, name) for a in args))
        case _:
            return expr
