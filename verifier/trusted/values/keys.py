"""Keys of values: equal for values that differ only in the names of their bound indices.

A key is made of tuples. In it, a bound index is a ``Variable`` with the number of indices bound
before it. A ``Variable`` differs from every name, so no name in a value is mistaken for a bound
index.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count

from pcg.language.normal import (
    Argument,
    Element,
    Factor,
    Function,
    NormalForm,
    Number,
    Symbol,
    Term,
)
from pcg.language.poly import Poly, Variable

Key = Hashable


def key(factor: Factor) -> Key:
    """The key of a factor."""
    return _Keys().factor(factor)


def key_of_term(term: Term) -> Key:
    return _Keys().term(term)


def key_of_argument(argument: Argument) -> Key:
    return _Keys().argument(argument)


class _Keys:
    """Writes a value with its bound indices numbered."""

    def __init__(self) -> None:
        self._numbers = count()
        self._names: dict[str, Poly] = {}

    def form(self, form: NormalForm) -> Key:
        return tuple(map(self.term, form))

    def term(self, term: Term) -> Key:
        sizes = [self._bind(name, size) for name, size in term.binders]
        divisions: list[Key] = []
        for division in term.divisions:
            divisions.append((self._poly(division.index), self._poly(division.size)))
            self._bind(division.quotient, Poly())
            self._bind(division.rest, Poly())
        guards = tuple(map(self._poly, term.guards))
        factors = tuple(map(self.factor, term.factors))
        return term.coefficient, tuple(sizes), tuple(divisions), guards, factors

    def argument(self, argument: Argument) -> Key:
        sizes = tuple([self._bind(name, size) for name, size in argument.binders])
        return sizes, tuple(map(self._poly, argument.guards)), self.form(argument.form)

    def factor(self, factor: Factor) -> Key:
        match factor:
            case Element(tensor, index):
                return Element, tensor, tuple(map(self._poly, index))
            case Function(name, args):
                return Function, name, tuple(map(self.argument, args))
            case Number(index):
                return Number, self._poly(index)
            case Symbol(name):
                return Symbol, name

    def _bind(self, name: str, size: Poly) -> Key:
        terms = self._poly(size)
        self._names[name] = Poly.of(Variable(f"%~{next(self._numbers)}"))
        return terms

    def _poly(self, value: Poly) -> Key:
        return value.substitute(self._names).terms
