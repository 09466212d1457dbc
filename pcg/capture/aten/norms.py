"""Translate norms of layers and groups, and variances, into graph operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from pcg.capture.aten.call import AtenCall, Entry, Unsupported
from pcg.capture.aten.pointwise import scaled
from pcg.capture.aten.shapes import of_torch, reshaped, shape_of, spread
from pcg.graph.graph import Value, apply
from pcg.ops import algebra, layers
from pcg.ops.constants import ones1
from pcg.ops.elementwise import sqrt
from pcg.ops.reductions import mean_axis, sum_axis
from pcg.ops.reindexing import expand_vector


def _normed(x: Value, weight: Value | None, bias: Value | None, eps: float) -> Value:
    """Return a layer norm over the last axis."""
    ones = apply(ones1(size0=shape_of(x)[-1]))
    weight = ones if weight is None else weight
    bias = scaled(ones, 0.0) if bias is None else bias
    return apply(layers.layer_norm(eps=eps), x, weight, bias)


def _layer_norm(call: AtenCall) -> Value:
    """Return a layer norm over the last axes, which are merged into one."""
    x, last = call.value("input"), call.integers("normalized_shape")
    size = prod(last)
    weight, bias = (
        None if (given := call.maybe(name)) is None else reshaped(given, (size,))
        for name in ("weight", "bias")
    )
    rows = reshaped(x, (*shape_of(x)[: x.rank - len(last)], size))
    return reshaped(_normed(rows, weight, bias, call.number("eps")), shape_of(x))


def _group_norm(call: AtenCall) -> tuple[Value, ...]:
    """Return a norm over each group of channels and all positions, with weight and bias by
    channel."""
    x, weight, bias = (call.maybe(name) for name in ("input", "weight", "bias"))
    assert x is not None, "torch always gives it"
    groups, samples = call.integer("group"), shape_of(x)[0]
    size = prod(shape_of(x)[1:]) // groups
    apart = reshaped(x, (samples, groups, size))
    out = reshaped(_normed(apart, None, None, call.number("eps")), shape_of(x))
    if weight is not None:
        out = apply(algebra.multiply(), out, apply(expand_vector(axis=1), out, weight))
    if bias is not None:
        out = apply(algebra.add(), out, apply(expand_vector(axis=1), out, bias))
    return (out,)


def _length(call: AtenCall) -> Value:
    """Return the 2-norm or the 1-norm of vectors. As in torch, the 2-norm's derivative at zero is
    0, which that of a square root is not."""
    x, order = call.value("self"), call.number("ord")
    call.expect_room("self")
    axes, real = _axes(call, x.rank), "float32"
    if order == 1.0:
        sizes = of_torch("aten.abs.default(x0)", real, (x, real))
        return reshaped(_along(sizes, axes, is_mean=False), call.shape)
    if order != 2.0:
        raise Unsupported("ord")
    square = _along(apply(algebra.multiply(), x, x), axes, is_mean=False)
    return reshaped(root(square), call.shape)


def root(square: Value) -> Value:
    """Return the square root, with a derivative of 0 at 0."""
    real = "float32"
    is_zero = of_torch("aten.eq.Scalar(x0, 0)", "bool", (square, real))

    def filled(value: Value, number: float) -> Value:
        fill = f"aten.masked_fill.Scalar(x0, x1, {number})"
        return of_torch(fill, real, (value, real), (is_zero, "bool"))

    return filled(apply(sqrt(), filled(square, 1.0)), 0.0)


def _axes(call: AtenCall, rank: int) -> list[int]:
    dims = call.arguments["dim"]
    return sorted({dim % rank for dim in dims} if dims else range(rank))


def _moments(call: AtenCall) -> tuple[Value, Value]:
    """Return variance and mean, with the rank of the operand."""
    x = call.value("self")
    axes = _axes(call, x.rank)
    size = prod(shape_of(x)[axis] for axis in axes)
    # Torch's default is 1.
    correction = 1.0 if call.arguments["correction"] is None else call.number("correction")
    if size <= correction:
        raise Unsupported("correction")
    kept = [1 if axis in axes else length for axis, length in enumerate(shape_of(x))]
    mean = reshaped(_along(x, axes, is_mean=True), kept)
    centred = apply(algebra.add(), x, scaled(spread(mean, shape_of(x), x), -1.0))
    square = apply(algebra.multiply(), centred, centred)
    total = reshaped(_along(square, axes, is_mean=False), kept)
    return scaled(total, 1.0 / (size - correction)), mean


def _along(x: Value, axes: Sequence[int], *, is_mean: bool) -> Value:
    for axis in reversed(axes):
        x = apply(mean_axis(axis=axis) if is_mean else sum_axis(axis=axis), x)
    return x


def _variance(call: AtenCall) -> Value:
    return reshaped(_moments(call)[0], call.shape)


def _variance_and_mean(call: AtenCall) -> tuple[Value, ...]:
    return tuple(reshaped(value, call.shape) for value in _moments(call))


def _deviation(call: AtenCall) -> Value:
    """Return the standard deviation. As in torch, its derivative is 0 for equal elements."""
    return reshaped(root(_moments(call)[0]), call.shape)


def _deviation_and_mean(call: AtenCall) -> tuple[Value, ...]:
    variance, mean = _moments(call)
    return reshaped(root(variance), call.shape), reshaped(mean, call.shape)


ENTRIES: Mapping[str, Entry] = {
    "aten.layer_norm.default": _layer_norm,
    "aten.native_group_norm.default": _group_norm,
    "aten.linalg_vector_norm.default": _length,
    "aten.var.correction": _variance,
    "aten.var_mean.correction": _variance_and_mean,
    "aten.std.correction": _deviation,
    "aten.std_mean.correction": _deviation_and_mean,
}
