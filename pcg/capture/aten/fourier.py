"""Translate Fourier transforms into products with matrices of cosines and sines.

Problem: torch's transforms return complex numbers, which no function of a graph does. Method: the
definition. Along one axis of N elements, frequency k of a transform is the sum of x[j] times
cos(2 pi j k / N), and of x[j] times the sine, so that both parts are products with a matrix, which
the graph makes of positions; several axes are transformed one after the other. So a transform has
an equation, and is cut along all other axes and along what it sums.
Exact up to rounding: j k is taken modulo N before it becomes an angle, and is a whole number in
single precision up to N = 4096, beyond which a transform is refused. It takes N multiplications an
element, not log N; on devices that multiply matrices that is quicker up to a few thousand elements
(Lee-Thorp et al., "FNet", 2021, section 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt

from pcg.capture.aten.call import AtenCall, Unsupported
from pcg.capture.aten.parts import Complex, complex_argument, minus, plus, times
from pcg.capture.aten.pointwise import full, scaled
from pcg.capture.aten.shapes import joined, of_torch, reshaped, shape_of, spread, swapped
from pcg.graph.graph import Value, apply
from pcg.ops import algebra
from pcg.ops.constants import position_ids

MOST = 4096
"""Elements of an axis: products of two positions are exact in single precision."""
SCALES: Mapping[int, Callable[[int], float]] = {
    0: lambda size: 1.0,
    1: lambda size: 1.0 / sqrt(size),
    2: lambda size: 1.0 / size,
}
"""By torch's number of a normalization: what the sums over an axis are multiplied by."""


def _waves(rows: int, columns: int, size: int, scale: float) -> tuple[Value, Value]:
    """Cosine and sine of 2 pi j k / size, for j < rows and k < columns, times a scale. Half a turn
    has a sine of just 0, so that what is real has the angle that torch gives it."""
    if size > MOST:
        raise Unsupported("dim")
    shape, real = (rows, columns), "float32"
    j = spread(reshaped(apply(position_ids(size=rows)), (rows, 1)), shape)
    k = spread(apply(position_ids(size=columns)), shape)
    turns = of_torch(f"aten.remainder.Scalar(x0, {size})", real, (times(j, k), real))
    angle = scaled(turns, 2.0 * pi / size)
    cosine, sine = (
        of_torch(f"aten.{name}.default(x0)", real, (angle, real)) for name in ("cos", "sin")
    )
    half = of_torch(f"aten.eq.Scalar(x0, {size / 2})", "bool", (turns, real))
    fill = "aten.masked_fill.Scalar(x0, x1, 0.0)"
    sine = of_torch(fill, real, (sine, real), (half, "bool"))
    return scaled(cosine, scale), scaled(sine, scale)


def _product(x: Value, matrix: Value) -> Value:
    return apply(algebra.matmul(), x, matrix)


def _along(x: Complex | Value, axis: int, kept: int, sign: float, scale: float) -> Complex:
    """The first ``kept`` frequencies of an axis: of the sum of x[j] exp(sign * 2 pi i j k / N)."""
    real = x.real if isinstance(x, Complex) else x
    last, size = real.rank - 1, shape_of(real)[axis]
    cosine, sine = _waves(size, kept, size, scale)
    sine = scaled(sine, sign)
    real = swapped(real, axis, last)
    transform = Complex(_product(real, cosine), _product(real, sine))
    if isinstance(x, Complex):
        other = swapped(x.imaginary, axis, last)
        transform = Complex(
            minus(transform.real, _product(other, sine)),
            plus(transform.imaginary, _product(other, cosine)),
        )
    return Complex(swapped(transform.real, axis, last), swapped(transform.imaginary, axis, last))


def _axes(call: AtenCall, rank: int) -> list[int]:
    axes = [dim % rank for dim in call.integers("dim")]
    if not axes:
        raise Unsupported("dim")
    return axes


def _scale(call: AtenCall, size: int) -> float:
    return SCALES[call.integer("normalization")](size)


def _of_real(call: AtenCall) -> Complex:
    """Of the last axis that is named perhaps only those frequencies that tell the others."""
    x = call.value("self")
    *others, last = _axes(call, x.rank)
    size = shape_of(x)[last]
    kept = size // 2 + 1 if call.arguments["onesided"] else size
    transform = _along(x, last, kept, -1.0, _scale(call, size))
    return _along_all(call, transform, others, -1.0)


def _of_complex(call: AtenCall) -> Complex:
    x = complex_argument(call, "self")
    sign = -1.0 if call.arguments["forward"] else 1.0
    return _along_all(call, x, _axes(call, x.real.rank), sign)


def _along_all(call: AtenCall, x: Complex, axes: list[int], sign: float) -> Complex:
    for axis in axes:
        size = shape_of(x.real)[axis]
        x = _along(x, axis, size, sign, _scale(call, size))
    return x


def _to_real(call: AtenCall) -> Value:
    """Back to real numbers. Of the last axis only the first frequencies are there: each but the
    first, and the one in the middle, stands for its conjugate as well."""
    x = complex_argument(call, "self")
    *others, last = _axes(call, x.real.rank)
    x = _along_all(call, x, others, 1.0)
    size, kept, end = call.integer("last_dim_size"), shape_of(x.real)[last], x.real.rank - 1
    if kept != size // 2 + 1:
        raise Unsupported("last_dim_size")
    twice = (size - 1) // 2
    parts = [(1.0, 1), (2.0, twice), (1.0, kept - 1 - twice)]
    counts = joined([spread(full(n), (length,)) for n, length in parts if length], 0)
    counts = spread(reshaped(counts, (kept, 1)), (kept, size))
    waves = _waves(kept, size, size, _scale(call, size))
    cosine, sine = (times(wave, counts) for wave in waves)
    real, imaginary = (swapped(part, last, end) for part in (x.real, x.imaginary))
    return swapped(minus(_product(real, cosine), _product(imaginary, sine)), last, end)


ENTRIES: Mapping[str, Callable[[AtenCall], Complex | Value]] = {
    "aten._fft_r2c.default": _of_real,
    "aten._fft_c2c.default": _of_complex,
    "aten._fft_c2r.default": _to_real,
}
"""What torch makes of all of its transforms."""
