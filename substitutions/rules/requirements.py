"""Parses and checks the equations that a rule requires, such as ``|x.0| = 1`` or ``s = |y.1|*k``.

A rule that is proved for some sizes only requires equations between sizes. Files state them as
text. Each side of an equation is a sum of products of integers, symbols and sizes of inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pcg.errors import InputError
from pcg.language.poly import Poly, product
from verifier.trusted.sizes.runs import Group
from verifier.trusted.sizes.sizes import SizeEquation, input_size

_FACTOR = re.compile(r"[0-9]{1,18}|\|[A-Za-z_]\w*\.[0-9]{1,4}\||[A-Za-z_]\w*")
_SIZE = re.compile(r"\|(\w+)\.([0-9]+)\|")
_SIGN = re.compile(r"\s+([+-])\s+")


def parse_requirement(text: str) -> SizeEquation:
    """Return both sides of an equation. Raises InputError if the text is no equation."""
    sides = text.split(" = ")
    if len(sides) != 2:
        raise InputError("requires", f"expected 'SIZE = SIZE', got {text[:60]!r}")
    left, right = (_sum(side.strip()) for side in sides)
    return left, right


def requirement_text(equation: SizeEquation) -> str:
    """The equation as ``parse_requirement`` reads it."""
    left, right = equation
    return f"{left} = {right}"


def _sum(text: str) -> Poly:
    first, *rest = _SIGN.split(text)
    total = -_product(first[1:]) if first.startswith("-") else _product(first)
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        total = total + _product(term) if sign == "+" else total - _product(term)
    return total


def _product(text: str) -> Poly:
    return product(_factor(factor.strip()) for factor in text.split("*"))


def _factor(text: str) -> Poly:
    if not _FACTOR.fullmatch(text):
        raise InputError("requires", f"expected a number, symbol or size, got {text[:20]!r}")
    return Poly.of(int(text)) if text.isdigit() else Poly.of(text)


def required_sizes(equations: Sequence[SizeEquation]) -> frozenset[tuple[str, int]]:
    """The dimensions of inputs whose sizes occur in the equations. None of them may be any number
    of axes."""
    symbols = {symbol for sides in equations for side in sides for symbol in side.symbols}
    matches = (_SIZE.fullmatch(symbol) for symbol in symbols)
    return frozenset((match[1], int(match[2])) for match in matches if match)


def moved(equations: Sequence[SizeEquation], group: Group, count: int) -> tuple[SizeEquation, ...]:
    """The same equations after the axis of a run has been replaced by ``count`` axes, which moves
    the dimensions after it."""
    sizes: dict[str, Poly] = {}
    for name, dim in required_sizes(equations):
        before = sum(n == name and d < dim for n, d in group)
        sizes[input_size(name, dim)] = Poly.of(input_size(name, dim + (count - 1) * before))
    return tuple((left.substitute(sizes), right.substitute(sizes)) for left, right in equations)


def not_natural(values: Iterable[Poly], numbers: Mapping[str, int | float]) -> Poly | None:
    """The first value that is not an integer of at least 0; None if all are."""
    for value in values:
        given = [numbers.get(symbol) for symbol in value.symbols]
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in given)
        if not whole or value.evaluate({s: int(numbers[s]) for s in value.symbols}) < 0:
            return value
    return None


def hold(equations: Sequence[SizeEquation], numbers: Mapping[str, int | float]) -> bool:
    """Whether all equations hold for the given values of symbols and sizes. False if a symbol or
    size has no integer value."""
    for left, right in equations:
        if not left.symbols | right.symbols <= numbers.keys():
            return False
        whole = {s: v for s in left.symbols | right.symbols if isinstance(v := numbers[s], int)}
        if len(whole) < len(left.symbols | right.symbols):
            return False
        if left.evaluate(whole) != right.evaluate(whole):
            return False
    return True
