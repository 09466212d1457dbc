"""Complex numbers as pairs of real numbers, with the arithmetic that their entries share."""

from __future__ import annotations

from dataclasses import dataclass

from pcg.capture.aten.call import AtenCall, Unsupported
from pcg.capture.aten.pointwise import full, scaled
from pcg.capture.aten.shapes import shape_of, spread
from pcg.graph.graph import Value, apply
from pcg.ops import algebra


@dataclass(frozen=True)
class Complex:
    """A tensor of complex numbers. Both parts have its shape."""

    real: Value
    imaginary: Value


def complex_argument(call: AtenCall, name: str) -> Complex:
    """Return an argument that is a complex tensor. Raises Unsupported if it is none."""
    given = call.arguments[name]
    if not isinstance(given, Complex):
        raise Unsupported(name)
    return given


def as_complex(call: AtenCall, name: str) -> Complex:
    """Return an argument that is a tensor or a number as a complex tensor. Raises Unsupported if it
    is neither."""
    given = call.arguments[name]
    if isinstance(given, (int, float, complex)):
        number = complex(given)
        return Complex(full(number.real), full(number.imag))
    if isinstance(given, Value):
        return Complex(given, spread(full(0.0), shape_of(given), given))
    return complex_argument(call, name)


def times(x: Value, y: Value) -> Value:
    """x * y, of one shape."""
    return apply(algebra.multiply(), x, y)


def plus(x: Value, y: Value, factor: float = 1.0) -> Value:
    """x + factor * y, of one shape."""
    return apply(algebra.add(), x, scaled(y, factor))


def minus(x: Value, y: Value) -> Value:
    """x - y, of one shape."""
    return plus(x, y, -1.0)
