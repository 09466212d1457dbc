"""Translate Fourier transforms into products with matrices of cosines and sines.

Problem: torch's transforms return complex numbers, which no graph function does. Method: the
definition. Along an axis of N elements, frequency k is the sum of x[j] cos(2 pi j k / N), and the
sum of x[j] sin(2 pi j k / N). Both parts are matrix products with a matrix that the graph makes of
positions. Several axes are transformed one after the other. So a transform has an equation, and can
be cut along all other axes and along the summed axis. Exact up to rounding: j k is taken modulo N
before it becomes an angle, and is exact in float32 up to N = 4096. Longer axes are refused.
Complexity: N multiplications for each element, not log N. On devices that multiply matrices this is
faster up to a few thousand elements (Lee-Thorp et al., "FNet", 2021, section 4.2).
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
"""The most elements of an axis: the product of two positions is exact in float32."""
SCALES: Mapping[int, Callable[[int], float]] = {
    0: lambda size: 1.0,
    1: lambda size: 1.0 / sqrt(size),
    2: lambda size: 1.0 / size,
}
"""By torch's number of a normalization, the factor of the sums over an axis of some size."""


def _waves(rows: int, columns: int, size: int, scale: float) -> tuple[Value, Value]:
    """Return cosine and sine of 2 pi j k / size, for j < rows and k < columns, times ``scale``.

    The sine of half a turn is exactly 0, so that real numbers get the same angle as in torch.
    """
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
    """Return the first ``kept`` frequencies of an axis: sums of x[j] exp(sign 2 pi i j k / N)."""
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
    """Return the transform of real numbers. One-sided, it keeps half the last axis' frequencies."""
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
    """Return the inverse transform to real numbers.

    The last axis has only the first half of its frequencies. Each of them stands for its conjugate
    too, except the first one and, for an even size, the last one.
    """
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
"""The functions into which torch decomposes all of its transforms."""
