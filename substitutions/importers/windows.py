"""Works out windows of convolutions and pools at symbolic sizes, without a quotient.

Where a size has to be halved, or rounded up to a multiple of a stride, the importer first splits
into cases: an input's size is ``2*q`` in one and ``2*q - 1`` in the other. Each has to hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from pcg.language.poly import ONE, Poly
from substitutions.importers.imported import IllTypedError
from substitutions.importers.sizes import KnownSizes, readable

SAME, VALID = 0, 1
"""The values of PM_PAD."""


class CasesNeeded(Exception):
    """No error: the importer starts again, case by case. A symbol is one of ``options``, and which
    one matters; ``bound`` says in words what they leave out."""

    def __init__(self, symbol: str, options: tuple[Poly, ...], bound: str = "") -> None:
        super().__init__(symbol)
        self.symbol = symbol
        self.options = options
        self.bound = bound


@dataclass(frozen=True)
class ForeignWindows:
    """Windows along a dimension: how many, and how many elements of padding before the first."""

    count: Poly
    before: Poly


def windows(
    known: KnownSizes, size: Poly, kernel: Poly, stride: int, padding: int
) -> ForeignWindows:
    """The windows of a convolution or pool. Raises CasesNeeded where cases differ, and
    IllTypedError where the kernel exceeds the image."""
    size, kernel = known.resolve(size), known.resolve(kernel)
    if padding == VALID:
        return ForeignWindows(quotient(known, size - kernel, stride) + 1, Poly())
    count = quotient(known, size + (stride - 1), stride)
    needed = (count - 1) * stride + kernel - known.resolve(size)
    return ForeignWindows(count, quotient(known, not_negative(needed), 2))


def quotient(known: KnownSizes, size: Poly, divisor: int) -> Poly:
    """``size / divisor``, rounded down. Raises CasesNeeded."""
    size = known.resolve(size)
    rest = next((c for monomial, c in size.terms if not monomial), 0) % divisor
    for monomial, coefficient in size.terms:
        if monomial and coefficient % divisor:
            raise CasesNeeded(monomial[0], residues(monomial[0], divisor))
    exact = (size - rest).over(Poly.of(divisor))
    assert exact is not None
    return exact


def residues(symbol: str, divisor: int) -> tuple[Poly, ...]:
    """A size as a multiple less 0, 1, ...: the multiple is that of its quotient rounded up."""
    whole = Poly.of(f"{symbol[:-1]}.up{divisor}|")
    return tuple(whole * divisor - less for less in range(divisor))


def not_negative(size: Poly) -> Poly:
    """``max(size, 0)``. Raises CasesNeeded where it may be either, IllTypedError where it is not
    known for which sizes."""
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
    """How many zeros an enlarged kernel has before the old one, the smaller half of all.

    Raises CasesNeeded for a kernel of unknown size, IllTypedError for one that is larger.
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
    """The least that a size may be where one symbol has a value."""
    return size.evaluate({**dict.fromkeys(size.symbols, 1), symbol: value})
