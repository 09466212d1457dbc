"""Integer polynomials over named symbols, the arithmetic of sizes and indices.

A symbol is an index variable (``k``), a size (``|k|``) or a symbolic attribute (``at``). The size
of a merged dimension is a product (``|m|*|n|``), that of a concatenation a sum, and an index into a
merged dimension is ``m*|n| + n``. Polynomials represent all three without division.

Symbols in equations, rules and files are strings. A proof needs further ones, which are values of a
class of their own (``Variable``), so that no name from a file can be equal to one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar, Self

Monomial = tuple[str, ...]
"""A product of symbols, sorted, repeated for powers. The empty tuple is 1."""


class Variable(str):
    """A symbol created by a proof. It equals only itself, and no string of the same text, so it
    equals no name from a file. There is one instance for each text."""

    __slots__ = ()
    _made: ClassVar[dict[str, Variable]] = {}

    def __new__(cls, text: str) -> Self:
        instance = cls._made.get(text)
        if instance is None:
            instance = cls._made.setdefault(text, super().__new__(cls, text))
        assert isinstance(instance, cls)
        return instance

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[type[Variable], tuple[str]]:
        return Variable, (str.__str__(self),)


@dataclass(frozen=True)
class Poly:
    """A polynomial: sorted (monomial, coefficient) pairs without zero coefficients."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    @staticmethod
    def of(value: Poly | int | str) -> Poly:
        """Return a constant, a symbol, or a polynomial as a polynomial."""
        if isinstance(value, Poly):
            return value
        if isinstance(value, str):
            return Poly((((value,), 1),))
        return Poly((((), value),)) if value else ZERO

    @staticmethod
    def collect(pairs: Iterable[tuple[Monomial, int]]) -> Poly:
        """Return the sum of monomials with coefficients, in canonical form."""
        total: dict[Monomial, int] = {}
        for monomial, coefficient in pairs:
            total[monomial] = total.get(monomial, 0) + coefficient
        return Poly(tuple(sorted((m, c) for m, c in total.items() if c)))

    def __add__(self, other: Poly | int) -> Poly:
        return Poly.collect(self.terms + Poly.of(other).terms)

    def __neg__(self) -> Poly:
        return Poly(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Poly | int) -> Poly:
        return self + (-Poly.of(other))

    def __rsub__(self, other: int) -> Poly:
        return Poly.of(other) - self

    def __mul__(self, other: Poly | int) -> Poly:
        right = Poly.of(other).terms
        return Poly.collect((tuple(sorted(m + n)), c * d) for m, c in self.terms for n, d in right)

    __radd__ = __add__
    __rmul__ = __mul__

    @cached_property
    def symbols(self) -> frozenset[str]:
        return frozenset(s for m, _ in self.terms for s in m)

    def mentions(self, symbols: Container[str]) -> bool:
        """Whether one of these symbols occurs in it."""
        return any(s in symbols for m, _ in self.terms for s in m)

    @property
    def constant(self) -> int | None:
        """The value of a polynomial without symbols, else None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def symbol(self) -> str | None:
        """The symbol of a polynomial that is exactly one symbol, else None."""
        if len(self.terms) != 1 or self.terms[0][1] != 1 or len(self.terms[0][0]) != 1:
            return None
        return self.terms[0][0][0]

    def over(self, divisor: Poly) -> Poly | None:
        """Return the quotient, or None if it is no polynomial. It or ``divisor`` has one term."""
        if len(divisor.terms) == 1:
            return self._over_term(divisor)
        if not self.terms or not divisor.terms:
            return None
        quotient = Poly(self.terms[:1])._over_term(Poly(divisor.terms[:1]))
        return quotient if quotient is not None and quotient * divisor == self else None

    def _over_term(self, divisor: Poly) -> Poly | None:
        ((monomial, factor),) = divisor.terms
        terms: list[tuple[Monomial, int]] = []
        for symbols, coefficient in self.terms:
            left = Counter(symbols)
            left.subtract(monomial)
            if coefficient % factor or min(left.values(), default=0) < 0:
                return None
            terms.append((tuple(sorted(left.elements())), coefficient // factor))
        return Poly.collect(terms)

    def coefficient(self, symbol: str) -> Poly:
        """Return the factor of ``symbol`` in the terms with its first power."""
        return Poly.collect((_without(m, symbol), c) for m, c in self.terms if m.count(symbol) == 1)

    def degree_in(self, symbol: str) -> int:
        return max((m.count(symbol) for m, _ in self.terms), default=0)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return its value. Raises KeyError for a symbol without a value."""
        total = 0
        for monomial, coefficient in self.terms:
            for symbol in monomial:
                coefficient *= values[symbol]
            total += coefficient
        return total

    def at(self, values: Mapping[str, float]) -> int | float:
        """Return its value where symbols may be real. Raises KeyError for one without a value."""
        return sum(c * prod(values[symbol] for symbol in monomial) for monomial, c in self.terms)

    def substitute(self, values: Mapping[str, Poly]) -> Poly:
        """Return it with symbols replaced by polynomials, all at once."""
        if (symbol := self.symbol) is not None:
            return values.get(symbol, self)
        if not self.mentions(values):
            return self
        pairs: list[tuple[Monomial, int]] = []
        for monomial, coefficient in self.terms:
            pairs += _expanded(monomial, coefficient, values)
        return Poly.collect(pairs)

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        text = ""
        for monomial, c in sorted(self.terms, key=lambda term: (not term[0], term[0])):
            size = "*".join(([] if abs(c) == 1 and monomial else [str(abs(c))]) + list(monomial))
            sign = "-" if c < 0 else "+"
            text += f" {sign} {size}" if text else (f"-{size}" if c < 0 else size)
        return text


def _expanded(
    monomial: Monomial, coefficient: int, values: Mapping[str, Poly]
) -> list[tuple[Monomial, int]]:
    """Return the terms of a monomial with some symbols replaced by polynomials, multiplied out."""
    unchanged = tuple(symbol for symbol in monomial if symbol not in values)
    terms = [(unchanged, coefficient)]
    for symbol in monomial:
        if symbol in values:
            terms = [
                (tuple(sorted(m + n)), c * d) for m, c in terms for n, d in values[symbol].terms
            ]
    return terms


def _without(monomial: Monomial, symbol: str) -> Monomial:
    position = monomial.index(symbol)
    return monomial[:position] + monomial[position + 1 :]


ZERO = Poly()
ONE = Poly((((), 1),))


def product(factors: Iterable[Poly]) -> Poly:
    """Return the product of polynomials, 1 if there are none."""
    total = ONE
    for factor in factors:
        total = total * factor
    return total
