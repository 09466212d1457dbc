"""Values as products of tensors and constants, during compilation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from pcg.language.poly import Poly
from pcg.ops.algebra import scale
from pcg.ops.elementwise import exp, negate
from pcg.types.operator import Call
from substitutions.generate.decompose.named_axes import NamedTensor


class NotCompiled(Exception):
    """No graph of primitive operators computes a value; the text says why."""


@dataclass(frozen=True)
class Pick:
    """A factor that is 1 where the id is the index ``row``, and 0 elsewhere."""

    ids: NamedTensor
    row: str


@dataclass(frozen=True)
class Product:
    """A value as ``number * calls(over / under) * picks * exp(sum of power * log)``.

    ``calls``: element-wise operators that multiply by a constant. ``logs``: the maxima m that
    exponentials ``exp(x - m)`` were taken relative to, each with the power of its factor
    ``exp(m)``.
    """

    number: Fraction = Fraction(1)
    calls: tuple[Call, ...] = ()
    over: tuple[NamedTensor, ...] = ()
    under: tuple[NamedTensor, ...] = ()
    picks: tuple[Pick, ...] = ()
    logs: tuple[tuple[NamedTensor, int], ...] = ()

    @property
    def is_constant(self) -> bool:
        return not (self.over or self.under or self.picks or self.logs)

    def times(self, other: Product) -> Product:
        powers: Counter[NamedTensor] = Counter()
        for tensor, power_of in (*self.logs, *other.logs):
            powers[tensor] += power_of
        return Product(
            self.number * other.number,
            self.calls + other.calls,
            self.over + other.over,
            self.under + other.under,
            self.picks + other.picks,
            tuple((tensor, n) for tensor, n in powers.items() if n),
        )


def raised(tensor: NamedTensor, exponent: int) -> NamedTensor:
    """``exp(exponent * tensor)``."""
    scaled = tensor if exponent == 1 else tensor.mapped(scale(factor=float(exponent)))
    return scaled.mapped(exp())


def _float(number: Fraction) -> float:
    """A number as a real attribute. Raises NotCompiled if no float is equal to it."""
    value = float(number)
    if Fraction(value) != number:
        raise NotCompiled(f"{number} is no floating-point number")
    return value


def multiplied(number: Fraction) -> Iterable[Call]:
    if number == 1:
        return ()
    return (negate(),) if number == -1 else (scale(factor=_float(number)),)


def offset_of(constant: Product) -> Poly | float:
    """A constant as a real attribute. Raises NotCompiled if it is no constant or attribute."""
    if not constant.is_constant:
        raise NotCompiled("an exponent that is no constant")
    if not constant.calls:
        return _float(constant.number)
    attribute = constant.calls[0].values.get("factor")
    whole = constant.number.denominator == 1
    if len(constant.calls) > 1 or not isinstance(attribute, Poly) or not whole:
        raise NotCompiled("a constant that is no attribute")
    return attribute * int(constant.number)
