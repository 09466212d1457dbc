"""Bring an expression into normal form, a sum of products with guards.

    value = sum over terms of  coefficient * sum over binders, where guards: product of factors

Products are distributed over sums. So each term is one product of element accesses, scalar
functions of values, and index values. The normal form is equal to the expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count

from pcg.language import expr
from pcg.language.expr import Expr
from pcg.language.poly import Poly, Variable


@dataclass(frozen=True)
class Element:
    """An element of a named tensor."""

    tensor: str
    index: tuple[Poly, ...]


@dataclass(frozen=True)
class Argument:
    """A value in normal form. Under ``max`` it stands for one value for each choice of binders
    where the guards hold."""

    form: NormalForm
    binders: tuple[tuple[str, Poly], ...] = ()
    guards: tuple[Poly, ...] = ()


@dataclass(frozen=True)
class Function:
    """A scalar function of values. ``max`` takes any number of arguments, in any order."""

    name: str
    args: tuple[Argument, ...]

    @staticmethod
    def of(name: str, *forms: NormalForm) -> Function:
        """Return a function of plain values."""
        return Function(name, tuple(Argument(form) for form in forms))


@dataclass(frozen=True)
class Number:
    """An index or a size used as a number."""

    index: Poly


@dataclass(frozen=True)
class Symbol:
    """A real attribute."""

    name: str


Factor = Element | Function | Number | Symbol


@dataclass(frozen=True)
class Division:
    """Defines quotient and rest: ``index = quotient * size + rest`` with ``0 <= rest < size``.

    Both are unique for every index, so nothing is ever divided.
    """

    quotient: str
    rest: str
    index: Poly
    size: Poly


@dataclass(frozen=True)
class Term:
    """``coefficient * sum over binders where every guard >= 0: product of factors``.

    ``divisions`` define further indices from the bound ones.
    """

    coefficient: Fraction
    binders: tuple[tuple[str, Poly], ...] = ()
    guards: tuple[Poly, ...] = ()
    factors: tuple[Factor, ...] = ()
    divisions: tuple[Division, ...] = ()


NormalForm = tuple[Term, ...]
Resolve = Callable[[int, tuple[Poly, ...]], NormalForm]
"""Returns the normal form of an element of an operand, given the operand's number and the index."""


class Normalizer:
    """Brings expressions into normal form, with summed indices that never clash."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def normalize(self, value: Expr, resolve: Resolve) -> NormalForm:
        """Return the normal form of ``value``, with ``resolve`` applied to its accesses."""
        match value:
            case expr.Const(number):
                return (Term(number),) if number else ()
            case expr.Real(name):
                return (Term(Fraction(1), factors=(Symbol(name),)),)
            case expr.IndexValue(index):
                return (Term(Fraction(1), factors=(Number(index),)),)
            case expr.Guard(index):
                return guarded((Term(Fraction(1)),), index)
            case expr.Access(operand, index):
                return resolve(operand, index)
            case expr.Sum(var, size, body):
                terms = self.normalize(body, resolve)
                return tuple(replace(t, binders=((var, size), *t.binders)) for t in terms)
            case expr.Add(parts):
                return tuple(t for part in parts for t in self.normalize(part, resolve))
            case expr.Mul(parts):
                return self._product(self.normalize(part, resolve) for part in parts)
            case expr.Apply(name, args):
                inner = [self.normalize(arg, resolve) for arg in args]
                # The normal form of relu(x) is max(x, 0).
                function = Function.of("max", *inner, ()) if name == "relu" else None
                function = function or Function.of(name, *inner)
                return (Term(Fraction(1), factors=(function,)),)
            case expr.Max():
                argument = self._greatest(value, resolve)
                return (Term(Fraction(1), factors=(Function("max", (argument,)),)),)

    def _greatest(self, value: Expr, resolve: Resolve) -> Argument:
        """Return nested maxima as one maximum over all their indices."""
        binders: list[tuple[str, Poly]] = []
        guards: list[Poly] = []
        while isinstance(value, expr.Max):
            binders.append((value.var, value.size))
            guards += value.guards
            value = value.body
        return Argument(self.normalize(value, resolve), tuple(binders), tuple(guards))

    def fresh(self, name: str) -> Variable:
        """Return a new summed index, different from all others."""
        return Variable(f"%{stem(name)}~{next(self._numbers)}")

    def rename(self, term: Term, clashes: frozenset[str] | None = None) -> Term:
        """Return the term with its summed indices renamed: those in ``clashes``, or all."""
        old = [var for var, _ in term.binders if clashes is None or var in clashes]
        if not old:
            return term
        names = {var: self.fresh(var) for var in old}
        values = {var: Poly.of(name) for var, name in names.items()}
        binders = tuple((names.get(v, v), size.substitute(values)) for v, size in term.binders)
        return replace(substitute_term(replace(term, binders=()), values), binders=binders)

    def _product(self, parts: Iterable[NormalForm]) -> NormalForm:
        result: NormalForm = (Term(Fraction(1)),)
        for part in parts:
            result = tuple(self._times(left, right) for left in result for right in part)
        return result

    def _times(self, left: Term, right: Term) -> Term:
        used = frozenset(var for var, _ in left.binders)
        right = self.rename(right, used)
        return Term(
            left.coefficient * right.coefficient,
            left.binders + right.binders,
            left.guards + tuple(g for g in right.guards if g not in left.guards),
            left.factors + right.factors,
        )


def stem(name: str) -> str:
    """Return the equation's name of an index, given that name or a fresh one made from it."""
    return name.removeprefix("%").split("~")[0]


def guarded(form: NormalForm, guard: Poly) -> NormalForm:
    """Return a value equal to ``form`` where ``guard >= 0``, and 0 elsewhere."""
    constant = guard.constant
    if constant is not None:
        return form if constant >= 0 else ()
    return tuple(t if guard in t.guards else replace(t, guards=(*t.guards, guard)) for t in form)


def substitute_term(term: Term, values: Mapping[str, Poly]) -> Term:
    """Replace free symbols. The values must not contain a summed index of the term."""
    binders: list[tuple[str, Poly]] = []
    free = dict(values)
    for var, size in term.binders:
        binders.append((var, size.substitute(free)))
        free.pop(var, None)
    return Term(
        term.coefficient,
        tuple(binders),
        tuple(g.substitute(free) for g in term.guards),
        tuple(substitute_factor(f, free) for f in term.factors),
        tuple(
            replace(d, index=d.index.substitute(free), size=d.size.substitute(free))
            for d in term.divisions
        ),
    )


def substitute_form(form: NormalForm, values: Mapping[str, Poly]) -> NormalForm:
    return tuple(substitute_term(term, values) for term in form)


def substitute_argument(argument: Argument, values: Mapping[str, Poly]) -> Argument:
    binders: list[tuple[str, Poly]] = []
    free = dict(values)
    for var, size in argument.binders:
        binders.append((var, size.substitute(free)))
        free.pop(var, None)
    guards = tuple(guard.substitute(free) for guard in argument.guards)
    return Argument(substitute_form(argument.form, free), tuple(binders), guards)


def substitute_factor(factor: Factor, values: Mapping[str, Poly]) -> Factor:
    match factor:
        case Element(tensor, index):
            return Element(tensor, tuple(i.substitute(values) for i in index))
        case Function(name, args):
            return Function(name, tuple(substitute_argument(arg, values) for arg in args))
        case Number(index):
            return Number(index.substitute(values))
        case Symbol():
            return factor


def with_arguments(
    factors: Iterable[Factor], change: Callable[[Argument], Argument]
) -> tuple[Factor, ...]:
    """Return the factors with ``change`` applied to the arguments of functions."""
    return tuple(
        Function(f.name, tuple(map(change, f.args))) if isinstance(f, Function) else f
        for f in factors
    )


def elements(form: NormalForm) -> Iterator[Element]:
    """Yield all element accesses in a value, including those inside functions."""
    for term in form:
        for factor in term.factors:
            if isinstance(factor, Element):
                yield factor
            elif isinstance(factor, Function):
                for arg in factor.args:
                    yield from elements(arg.form)


def free_symbols(form: NormalForm) -> frozenset[str]:
    """Return the symbols (indices and sizes) that a value depends on, without summed indices."""
    free: set[str] = set()
    for term in form:
        inside: set[str] = set()
        for _, size in term.binders:
            inside |= size.symbols
        for guard in term.guards:
            inside |= guard.symbols
        for factor in term.factors:
            inside |= factor_symbols(factor)
        for division in term.divisions:
            inside |= division.index.symbols | division.size.symbols
        inside -= {name for d in term.divisions for name in (d.quotient, d.rest)}
        free |= inside - {var for var, _ in term.binders}
    return frozenset(free)


def argument_symbols(argument: Argument) -> frozenset[str]:
    """Return the symbols that an argument depends on, without its own indices."""
    symbols = set(free_symbols(argument.form))
    symbols.update(s for guard in argument.guards for s in guard.symbols)
    symbols.difference_update(var for var, _ in argument.binders)
    symbols.update(s for _, size in argument.binders for s in size.symbols)
    return frozenset(symbols)


def factor_symbols(factor: Factor) -> frozenset[str]:
    match factor:
        case Element(_, index):
            return frozenset(s for i in index for s in i.symbols)
        case Function(_, args):
            return frozenset(s for arg in args for s in argument_symbols(arg))
        case Number(index):
            return index.symbols
        case Symbol():
            return frozenset()
