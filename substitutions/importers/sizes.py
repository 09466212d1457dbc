"""Solves the equations between sizes of an imported rule, and divides sizes.

Sizes are never divided: if a size has to be a multiple of a divisor, the quotient is a new symbol,
such as ``|N.by.2|`` with ``|N| = 2*|N.by.2|``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd

from pcg.language.poly import ONE, Poly, product
from substitutions.importers.imported import IllTypedError, UnsupportedError
from verifier.trusted.errors import Undecided, Unsolvable
from verifier.trusted.sizes.sizes import SizeEquation, Sizes

_PART = re.compile(r"\|([\w.]+)\.by\.([A-Z\d_]+)\|")


@dataclass
class KnownSizes:
    """The equations between sizes so far. ``constants``: symbols that no equation may be solved
    for."""

    constants: frozenset[str] = frozenset()
    sizes: Sizes = field(default_factory=Sizes)
    asked: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """The demands so far, in order: the text of each, with the symbols that it is about."""

    def resolve(self, size: Poly) -> Poly:
        return self.sizes.resolve(size)

    def equal(self, a: Poly, b: Poly, what: str) -> None:
        """Demand that two sizes are equal. Raises IllTypedError if they cannot be, and
        UnsupportedError if the equation is not solved."""
        left, right = self.resolve(a), self.resolve(b)
        if left == right:
            return
        demand = f"{a} = {b}"
        problem = f"{what}: {readable(a)} against {readable(b)}"
        if (left - right).symbols <= self.constants:
            raise IllTypedError(problem, demand=demand)
        try:
            for a_part, b_part in _units(left, right):
                self.sizes.equal(a_part, b_part)
        except Undecided:
            if len(left.terms) > 1 or len(right.terms) > 1 or not self._free(left, right):
                raise UnsupportedError(problem) from None
            # Two products: each factor of one is a product of parts of the other's factors.
            self._share(left, right, problem)
            self.equal(left, right, what)
        except Unsolvable:
            raise IllTypedError(problem, demand=demand) from None
        self.asked[demand] = a.symbols | b.symbols

    def _free(self, *sizes: Poly) -> bool:
        return all(size.symbols.isdisjoint(self.constants) for size in sizes)

    def divide(self, size: Poly, divisor: Poly, what: str) -> Poly:
        """``size / divisor``, with the demand that it is an integer. Raises as ``equal`` does."""
        whole, by = self.resolve(size), self.resolve(divisor)
        exact = whole.over(by)
        if exact is not None:
            return exact
        self.asked[f"{divisor} divides {size}"] = divisor.symbols | size.symbols
        asked, self.asked = self.asked, {}  # The demands below restate this one.
        try:
            return self._make_multiple(whole, by, f"{what}: {readable(by)} in {readable(whole)}")
        except IllTypedError as error:
            demand = f"{divisor} divides {size}"
            raise IllTypedError(error.reason, demand=demand) from None
        finally:
            self.asked = asked

    def _make_multiple(self, size: Poly, divisor: Poly, problem: str) -> Poly:
        if size.symbols <= self.constants and divisor.symbols <= self.constants:
            raise IllTypedError(problem)
        if len(size.terms) > 1 or len(divisor.terms) > 1:
            quotient = Poly.of(f"|{_name(size)}.by.{_name(divisor)}|")
            self.equal(size, divisor * quotient, problem)
            return quotient
        if divisor.symbols <= self.constants:
            self._scale(size, divisor, problem)
        else:
            self._share(size, divisor, problem)
        exact = self.resolve(size).over(self.resolve(divisor))
        if exact is None:
            raise UnsupportedError(problem)
        return exact

    def _scale(self, size: Poly, divisor: Poly, problem: str) -> None:
        """Make a product a multiple of a constant: its only factor that is not constant takes the
        missing factors. Raises UnsupportedError if there are several such factors."""
        ((symbols, coefficient),) = size.terms
        ((needed, factor),) = divisor.terms
        missing = Counter(needed) - Counter(symbols)
        own = [s for s in symbols if s not in self.constants]
        if len(own) != 1 or (missing and coefficient != 1):
            raise UnsupportedError(problem)
        rest = factor // gcd(factor, coefficient)
        by = Poly(((tuple(sorted(missing.elements())), rest),))
        part = Poly.of(f"|{_name(Poly.of(own[0]))}.by.{_name(by)}|")
        self.equal(Poly.of(own[0]), by * part, problem)

    def _share(self, size: Poly, divisor: Poly, problem: str) -> None:
        """Make a product a multiple of another one: each factor of the divisor is a product of
        parts of the factors of the size. No solution is lost: the parts are greatest common
        divisors, taken one after the other. Raises UnsupportedError."""
        ((symbols, coefficient),) = size.terms
        ((needed, factor),) = divisor.terms
        if coefficient != 1 or factor != 1 or not self._free(size, divisor):
            raise UnsupportedError(problem)
        left = sorted((Counter(symbols) - Counter(needed)).elements())
        missing = sorted((Counter(needed) - Counter(symbols)).elements())
        if len({*left, *missing}) < len(left) + len(missing):
            raise UnsupportedError(problem)
        for number, symbol in enumerate(missing):
            if len(left) == 1:
                name = _name(Poly.of(left[0]))
                rest = Poly.of(f"|{name}.by.{_name(Poly.of(symbol))}|")
                self.equal(Poly.of(left[0]), rest * Poly.of(symbol), problem)
                left = [str(rest)]
                continue
            shares = [Poly.of(f"|{_name(Poly.of(s))}.with.{number}|") for s in left]
            rests = [Poly.of(f"|{_name(Poly.of(s))}.without.{number}|") for s in left]
            for old, share, rest in zip(left, shares, rests, strict=True):
                self.equal(Poly.of(old), share * rest, problem)
            self.equal(Poly.of(symbol), product(shares), problem)
            left = [str(rest) for rest in rests]


def _units(a: Poly, b: Poly) -> tuple[SizeEquation, ...]:
    """The equation, or equivalent ones. If one product has to be equal to a part of itself, the
    other factors are 1."""
    if len(a.terms) == len(b.terms) == 1:
        for product, factor in ((a, b), (b, a)):
            rest = product.over(factor)
            if rest is not None and rest.terms[0][1] == 1:
                return tuple((Poly.of(symbol), ONE) for symbol in sorted(rest.symbols))
    return ((a, b),)


def _name(size: Poly) -> str:
    """A size as part of the name of a symbol."""
    return re.sub(r"[^\w.]+", "_", str(size).replace("|", "")).strip("_")


def readable(size: Poly) -> str:
    """A size for readers: without bars, and ``N/2`` for ``|N.by.2|``."""
    text = str(size)
    while (replaced := _PART.sub(r"|\1|/\2", text)) != text:
        text = replaced
    return text.replace("|", "")


def relation(symbol: str, value: Poly) -> str:
    """The equation of a size as text: ``2 divides N``, or ``N = M``."""
    name = symbol.strip("|")
    if len(value.terms) == 1:
        ((symbols, coefficient),) = value.terms
        parts = [s for s in symbols if s.startswith(f"|{name}.by.")]
        if len(parts) == 1:
            others = list(symbols)
            others.remove(parts[0])
            return f"{readable(Poly(((tuple(others), coefficient),)))} divides {name}"
    return f"{name} = {readable(value)}"


def equations(known: KnownSizes, symbols: Sequence[str]) -> tuple[SizeEquation, ...]:
    """The symbols that are solved for, each with its value."""
    pairs = ((Poly.of(symbol), known.resolve(Poly.of(symbol))) for symbol in symbols)
    return tuple((a, b) for a, b in pairs if a != b)
