"""Computes the windows of convolutions and pools at symbolic sizes, without quotients.

If a size has to be halved, or rounded up to a multiple of a stride, the importer distinguishes
cases: the size of an input is ``2*q`` in one case and ``2*q - 1`` in the other. The rule has to
hold in each case.
"""

from __future__ import annotations

from dataclasses import dataclass

from pcg.language.poly import ONE, Poly
from substitutions.importers.imported import IllTypedError
from substitutions.importers.sizes import KnownSizes, readable

SAME, VALID = 0, 1
"""The values of PM_PAD."""


class CasesNeeded(Exception):
    """Not an error: makes the importer start again, once for each value of ``symbol`` in
    ``options``. ``bound``: a condition, as text, if the options leave out values."""

    def __init__(self, symbol: str, options: tuple[Poly, ...], bound: str = "") -> None:
        super().__init__(symbol)
        self.symbol = symbol
        self.options = options
        self.bound = bound


@dataclass(frozen=True)
class ForeignWindows:
    """The windows along a dimension: their number, and the padding before the first element."""

    count: Poly
    before: Poly


def windows(
    known: KnownSizes, size: Poly, kernel: Poly, stride: int, padding: int
) -> ForeignWindows:
    """The windows of a convolution or pool. Raises CasesNeeded if they depend on cases, and
    IllTypedError if the padding may be negative."""
    size, kernel = known.resolve(size), known.resolve(kernel)
    if padding == VALID:
        return ForeignWindows(quotient(known, size - kernel, stride) + 1, Poly())
    count = quotient(known, size + (stride - 1), stride)
    needed = (count - 1) * stride + kernel - known.resolve(size)
    return ForeignWindows(count, quotient(known, not_negative(needed), 2))


def quotient(known: KnownSizes, size: Poly, divisor: int) -> Poly:
    """``size / divisor``, rounded down. Raises CasesNeeded if the rest depends on a symbol."""
    size = known.resolve(size)
    rest = next((c for monomial, c in size.terms if not monomial), 0) % divisor
    for monomial, coefficient in size.terms:
        if monomial and coefficient % divisor:
            raise CasesNeeded(monomial[0], residues(monomial[0], divisor))
    exact = (size - rest).over(Poly.of(divisor))
    assert exact is not None
    return exact


def residues(symbol: str, divisor: int) -> tuple[Poly, ...]:
    """A size as a multiple of ``divisor`` minus 0, 1, ..., ``divisor - 1``."""
    whole = Poly.of(f"{symbol[:-1]}.up{divisor}|")
    return tuple(whole * divisor - less for less in range(divisor))


def not_negative(size: Poly) -> Poly:
    """``max(size, 0)``. Raises CasesNeeded if the sign depends on a symbol, and IllTypedError if it
    is not known for which sizes it is negative."""
    if all(c >= 0 for _, c in size.terms) or size.evaluate(dict.fromkeys(size.symbols, 1)) >= 0:
        rising = all(c > 0 for monomial, c in size.terms if monomial)
        if rising:
            return size
    if all(c <= 0 for _, c in size.terms):
        return Poly()
    falling = [monomial for monomial, c in size.terms if monomial and c < 0]
    if falling:
        raise IllTypedError(f"padding of {readable(size)}, which may be negative")
    symbol = next(monomial[0] for monomial, _ in size.terms if monomial)
    raise CasesNeeded(symbol, (ONE, Poly.of(f"{symbol[:-1]}.less1|") + 1))


def centred(known: KnownSizes, kernel: Poly, enlarged: int) -> Poly:
    """The number of zeros before the old kernel in an enlarged one: the smaller half of all zeros.

    Raises CasesNeeded for a kernel of unknown size, and IllTypedError for one that is too large.
    """
    size = known.resolve(kernel)
    if size.constant is None:
        symbol = min(size.symbols)
        fitting = [i for i in range(1, 2 * enlarged + 1) if _at(size, symbol, i) <= enlarged]
        bound = f"{kernel} <= {enlarged}"
        raise CasesNeeded(symbol, tuple(Poly.of(i) for i in fitting), bound)
    if size.constant > enlarged:
        raise IllTypedError(f"a kernel of size {size.constant} cannot be made {enlarged}")
    return Poly.of((enlarged - size.constant) // 2)


def _at(size: Poly, symbol: str, value: int) -> int:
    """The size with one symbol at a value and all others at 1."""
    return size.evaluate({**dict.fromkeys(size.symbols, 1), symbol: value})
