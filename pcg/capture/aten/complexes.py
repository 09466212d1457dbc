"""Translate functions of complex numbers into functions of two real tensors, their parts.

Rotary embeddings are often written with complex numbers: a product with one rotates a pair of real
numbers. Exact. A function without an entry is refused, since no graph function returns complex
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pcg.capture.aten.call import AtenCall, Entry, Unsupported, holds
from pcg.capture.aten.fourier import ENTRIES as FOURIER
from pcg.capture.aten.layers import PRODUCTS
from pcg.capture.aten.norms import root
from pcg.capture.aten.parts import Complex, as_complex, complex_argument, minus, plus, times
from pcg.capture.aten.pointwise import scaled
from pcg.capture.aten.reindexing import MOVES, PADS, SUMS
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
from pcg.ops.elementwise import exp, reciprocal

PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""The number formats of the parts of complex formats."""
Parts = Complex | Value | tuple[Complex | Value, ...]


def _from_pairs(call: AtenCall) -> Complex:
    x = call.value("self")
    halves = (narrowed(x, x.rank - 1, at, 1) for at in (0, 1))
    return Complex(*(reshaped(half, call.shape) for half in halves))


def _to_pairs(call: AtenCall) -> Value:
    x = complex_argument(call, "self")
    shape = (*shape_of(x.real), 1)
    return joined([reshaped(part, shape) for part in (x.real, x.imaginary)], len(shape) - 1)


def _polar(call: AtenCall) -> Complex:
    size, angle = broadcast(call.value("abs"), call.value("angle"), call.shape)
    return _turned(size, angle, call.formats["angle"])


def _turned(size: Value, angle: Value, real: str) -> Complex:
    """Return the complex number of an absolute value and an angle."""
    cosine, sine = (
        of_torch(f"aten.{name}.default(x0)", real, (angle, real)) for name in ("cos", "sin")
    )
    return Complex(times(size, cosine), times(size, sine))


def _from_parts(call: AtenCall) -> Complex:
    return Complex(*broadcast(call.value("real"), call.value("imag"), call.shape))


def _wide(x: Complex, shape: tuple[int, ...]) -> Complex:
    return Complex(spread(x.real, shape), spread(x.imaginary, shape))


def _multiply(call: AtenCall) -> Complex:
    x, y = call.arguments["self"], call.arguments["other"]
    if not isinstance(x, Complex):
        x, y = y, x
    if not isinstance(x, Complex):  # a real tensor, and a complex number
        return _product(*_both(call))
    if isinstance(y, (int, float)):
        return Complex(scaled(x.real, float(y)), scaled(x.imaginary, float(y)))
    if isinstance(y, Value):
        x = _wide(x, call.shape)
        factor = spread(y, call.shape, x.real)
        return Complex(times(x.real, factor), times(x.imaginary, factor))
    return _product(*_both(call))


def _both(call: AtenCall) -> tuple[Complex, Complex]:
    """Return both operands in the shape of the result."""
    x, y = (_wide(as_complex(call, name), call.shape) for name in ("self", "other"))
    return x, y


def _product(x: Complex, y: Complex) -> Complex:
    return Complex(
        minus(times(x.real, y.real), times(x.imaginary, y.imaginary)),
        plus(times(x.real, y.imaginary), times(x.imaginary, y.real)),
    )


def _divide(call: AtenCall) -> Complex:
    if isinstance(call.arguments["other"], (int, float)):
        inverse = {**call.arguments, "other": 1.0 / call.number("other")}
        return _multiply(replace(call, arguments=inverse))
    if isinstance(y := call.arguments["other"], Value):
        return _multiply(replace(call, arguments={**call.arguments, "other": _inverse_of(y)}))
    x, y = _both(call)
    return _product(x, _inverse(y))


def _inverse_of(x: Value) -> Value:
    return apply(reciprocal(), x)


def _inverse(x: Complex) -> Complex:
    """Return the inverse: the conjugate over the square of the absolute value."""
    factor = _inverse_of(_square(x))
    return Complex(times(x.real, factor), scaled(times(x.imaginary, factor), -1.0))


def _square(x: Complex) -> Value:
    """Return the square of the absolute value."""
    return plus(times(x.real, x.real), times(x.imaginary, x.imaginary))


def _absolute(call: AtenCall) -> Value:
    return root(_square(complex_argument(call, "self")))


def _angle(call: AtenCall) -> Value:
    x, real = complex_argument(call, "self"), "float32"
    return of_torch("aten.atan2.default(x0, x1)", real, (x.imaginary, real), (x.real, real))


def _exponential(call: AtenCall) -> Complex:
    x = complex_argument(call, "self")
    return _turned(apply(exp(), x.real), x.imaginary, "float32")


def _add(sign: float) -> Callable[[AtenCall], Complex]:
    def entry(call: AtenCall) -> Complex:
        factor = sign * call.number("alpha")
        x, y = _both(call)
        return Complex(plus(x.real, y.real, factor), plus(x.imaginary, y.imaginary, factor))

    return entry


def _bilinear(entry: Entry) -> Callable[[AtenCall], Parts]:
    """Return a matrix product of complex matrices, by products of their parts."""

    def made(call: AtenCall) -> Parts:
        names = ("self", "mat2" if "mat2" in call.arguments else "other")
        x, y = (as_complex(call, name) for name in names)

        def of(a: Value, b: Value) -> Value:
            product = entry(replace(call, arguments=dict(zip(names, (a, b), strict=True))))
            assert isinstance(product, Value), "one matrix"
            return product

        return Complex(
            minus(of(x.real, y.real), of(x.imaginary, y.imaginary)),
            plus(of(x.real, y.imaginary), of(x.imaginary, y.real)),
        )

    return made


def _padded(entry: Entry) -> Callable[[AtenCall], Parts]:
    """Return a padding of complex tensors with zeros or with their own elements."""

    def made(call: AtenCall) -> Parts:
        if call.arguments["value"]:
            raise Unsupported("value")
        return _by_parts(entry)(call)

    return made


def _cast(call: AtenCall) -> Complex:
    """Return a tensor in another complex format. The operand may be real."""
    x, old = as_complex(call, "self"), call.formats["self"]
    new = PARTS[call.formats[""]]
    old = PARTS.get(old, old)
    if holds(old, new):
        return x
    rounding = f"aten._to_copy.default(x0, dtype={new})"
    return Complex(*(of_torch(rounding, new, (part, old)) for part in (x.real, x.imaginary)))


def _opposite(call: AtenCall) -> Complex:
    x = complex_argument(call, "self")
    return Complex(scaled(x.real, -1.0), scaled(x.imaginary, -1.0))


def _conjugate(call: AtenCall) -> Complex:
    x = complex_argument(call, "self")
    return Complex(x.real, scaled(x.imaginary, -1.0))


def _by_parts(entry: Entry) -> Callable[[AtenCall], Parts]:
    """Return an entry that applies an operator to the real and to the imaginary part."""

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
        if isinstance(value, Value):  # a real tensor would need an imaginary part of zeros
            raise Unsupported("complex")
        return value

    return {name: part(value) for name, value in arguments.items()}


ENTRIES: Mapping[str, Callable[[AtenCall], Parts]] = {
    **{name: _by_parts(entry) for name, entry in {**MOVES, **SUMS}.items()},
    **{name: _bilinear(entry) for name, entry in PRODUCTS.items()},
    **FOURIER,
    "aten.view_as_complex.default": _from_pairs,
    "aten.view_as_real.default": _to_pairs,
    "aten.polar.default": _polar,
    "aten.complex.default": _from_parts,
    "aten.mul.Tensor": _multiply,
    "aten.add.Tensor": _add(1.0),
    "aten.sub.Tensor": _add(-1.0),
    **{name: _padded(entry) for name, entry in PADS.items()},
    "aten.div.Tensor": _divide,
    "aten.reciprocal.default": lambda call: _inverse(complex_argument(call, "self")),
    "aten.neg.default": _opposite,
    "aten.exp.default": _exponential,
    "aten.abs.default": _absolute,
    "aten.angle.default": _angle,
    "aten._to_copy.default": _cast,
    "aten._conj_physical.default": _conjugate,
    "aten._conj.default": _conjugate,
    "aten.conj_physical.default": _conjugate,
    "aten.clone.default": lambda call: complex_argument(call, "self"),
    "aten.alias.default": lambda call: complex_argument(call, "self"),
    "aten.resolve_conj.default": lambda call: complex_argument(call, "self"),
}
"""Entries by torch's names of the functions."""
