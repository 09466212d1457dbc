"""Translate functions of complex numbers: two tensors of real ones, which is what a graph has.

Rotary embeddings are written so: pairs of numbers are turned by a product with a complex number.
Exact. A function that has no entry is refused, as no function of a graph returns complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pcg.capture.aten.call import AtenCall, Entry, Unsupported
from pcg.capture.aten.moves import MOVES
from pcg.capture.aten.pointwise import scaled
from pcg.capture.aten.shapes import (
    broadcast,
    joined,
    narrowed,
    of_torch,
    reshaped,
    shape_of,
    spread,
)
from pcg.graph.graph import Value, apply
from pcg.ops import algebra


@dataclass(frozen=True)
class Complex:
    """A tensor of complex numbers; both parts have its shape."""

    real: Value
    imaginary: Value


Parts = Complex | Value | tuple[Complex | Value, ...]


def _complex(call: AtenCall, name: str) -> Complex:
    given = call.arguments[name]
    if not isinstance(given, Complex):
        raise Unsupported(name)
    return given


def _from_pairs(call: AtenCall) -> Complex:
    x = call.value("self")
    halves = (narrowed(x, x.rank - 1, at, 1) for at in (0, 1))
    return Complex(*(reshaped(half, call.shape) for half in halves))


def _to_pairs(call: AtenCall) -> Value:
    x = _complex(call, "self")
    shape = (*shape_of(x.real), 1)
    return joined([reshaped(part, shape) for part in (x.real, x.imaginary)], len(shape) - 1)


def _polar(call: AtenCall) -> Complex:
    size, angle = broadcast(call.value("abs"), call.value("angle"), call.shape)
    real = call.formats["angle"]
    cosine, sine = (
        of_torch(f"aten.{name}.default(x0)", real, (angle, real)) for name in ("cos", "sin")
    )
    return Complex(_times(size, cosine), _times(size, sine))


def _from_parts(call: AtenCall) -> Complex:
    return Complex(*broadcast(call.value("real"), call.value("imag"), call.shape))


def _times(x: Value, y: Value) -> Value:
    return apply(algebra.multiply(), x, y)


def _plus(x: Value, y: Value, factor: float = 1.0) -> Value:
    return apply(algebra.add(), x, scaled(y, factor))


def _wide(x: Complex, shape: tuple[int, ...]) -> Complex:
    return Complex(spread(x.real, shape), spread(x.imaginary, shape))


def _multiply(call: AtenCall) -> Complex:
    x, y = call.arguments["self"], call.arguments["other"]
    if not isinstance(x, Complex):
        x, y = y, x
    if not isinstance(x, Complex):
        raise Unsupported("self")
    if isinstance(y, (int, float)):
        return Complex(scaled(x.real, float(y)), scaled(x.imaginary, float(y)))
    x = _wide(x, call.shape)
    if isinstance(y, Value):
        factor = spread(y, call.shape, x.real)
        return Complex(_times(x.real, factor), _times(x.imaginary, factor))
    if not isinstance(y, Complex):
        raise Unsupported("other")
    y = _wide(y, call.shape)
    return Complex(
        _plus(_times(x.real, y.real), _times(x.imaginary, y.imaginary), -1.0),
        _plus(_times(x.real, y.imaginary), _times(x.imaginary, y.real)),
    )


def _add(sign: float) -> Callable[[AtenCall], Complex]:
    def entry(call: AtenCall) -> Complex:
        factor = sign * call.number("alpha")
        x, y = (_wide(_complex(call, name), call.shape) for name in ("self", "other"))
        return Complex(_plus(x.real, y.real, factor), _plus(x.imaginary, y.imaginary, factor))

    return entry


def _conjugate(call: AtenCall) -> Complex:
    x = _complex(call, "self")
    return Complex(x.real, scaled(x.imaginary, -1.0))


def _by_parts(entry: Entry) -> Callable[[AtenCall], Parts]:
    """What moves elements moves both parts alike."""

    def made(call: AtenCall) -> Parts:
        real = entry(replace(call, arguments=_parts(call.arguments, lambda x: x.real)))
        imaginary = entry(replace(call, arguments=_parts(call.arguments, lambda x: x.imaginary)))
        if isinstance(real, Value) and isinstance(imaginary, Value):
            return Complex(real, imaginary)
        assert isinstance(real, tuple), "of one kind"
        assert isinstance(imaginary, tuple), "of one kind"
        return tuple(Complex(*pair) for pair in zip(real, imaginary, strict=True))

    return made


def _parts(arguments: Mapping[str, Any], of: Callable[[Complex], Value]) -> dict[str, Any]:
    def part(value: Any) -> Any:
        if isinstance(value, Complex):
            return of(value)
        if isinstance(value, list):
            return [part(one) for one in list[Any](value)]
        if isinstance(value, Value):  # whose imaginary part would have to be made
            raise Unsupported("complex")
        return value

    return {name: part(value) for name, value in arguments.items()}


ENTRIES: Mapping[str, Callable[[AtenCall], Parts]] = {
    **{name: _by_parts(entry) for name, entry in MOVES.items()},
    "aten.view_as_complex.default": _from_pairs,
    "aten.view_as_real.default": _to_pairs,
    "aten.polar.default": _polar,
    "aten.complex.default": _from_parts,
    "aten.mul.Tensor": _multiply,
    "aten.add.Tensor": _add(1.0),
    "aten.sub.Tensor": _add(-1.0),
    "aten._conj.default": _conjugate,
    "aten.conj_physical.default": _conjugate,
    "aten.clone.default": lambda call: _complex(call, "self"),
    "aten.alias.default": lambda call: _complex(call, "self"),
    "aten.resolve_conj.default": lambda call: _complex(call, "self"),
}
"""By torch's name of the function."""
