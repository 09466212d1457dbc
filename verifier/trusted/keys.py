"""Keys of values: equal where values differ in the names of their own bound indices only."""

from __future__ import annotations

from itertools import count

from pcg.normal import Argument, Element, Factor, Function, NormalForm, Number, Symbol, Term
from pcg.poly import Poly


def key(factor: Factor) -> str:
    """Equal for factors that differ in the names of their own bound indices only."""
    return _Key().factor(factor)


def key_of_term(term: Term) -> str:
    return _Key().term(term)


def key_of_argument(argument: Argument) -> str:
    return _Key().argument(argument)


class _Key:
    """Writes a value with its bound indices numbered."""

    def __init__(self) -> None:
        self._numbers = count()
        self._names: dict[str, Poly] = {}

    def form(self, form: NormalForm) -> str:
        return "+".join(map(self.term, form))

    def term(self, term: Term) -> str:
        sizes = [self._bind(name, size) for name, size in term.binders]
        for division in term.divisions:
            sizes.append(f"{self._poly(division.index)}/{self._poly(division.size)}")
            self._bind(division.quotient, Poly())
            self._bind(division.rest, Poly())
        guards = ",".join(map(self._poly, term.guards))
        factors = "*".join(map(self.factor, term.factors))
        return f"{term.coefficient}[{','.join(sizes)}|{guards}]{factors}"

    def argument(self, argument: Argument) -> str:
        sizes = [self._bind(name, size) for name, size in argument.binders]
        guards = ",".join(map(self._poly, argument.guards))
        return f"[{','.join(sizes)}|{guards}]({self.form(argument.form)})"

    def factor(self, factor: Factor) -> str:
        match factor:
            case Element(tensor, index):
                return f"{tensor}[{','.join(map(self._poly, index))}]"
            case Function(name, args):
                return f"{name}({';'.join(map(self.argument, args))})"
            case Number(index):
                return f"#{self._poly(index)}"
            case Symbol(name):
                return f"${name}"

    def _bind(self, name: str, size: Poly) -> str:
        text = self._poly(size)
        self._names[name] = Poly.of(f"~{next(self._numbers)}")
        return text

    def _poly(self, value: Poly) -> str:
        return str(value.substitute(self._names))
