"""Translate ATen operators that move elements or reduce along axes into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod

from pcg.capture.aten.call import AtenCall, Entry, Unsupported
from pcg.capture.aten.pointwise import full
from pcg.capture.aten.shapes import joined, narrowed, reshaped, shape_of, spread, swapped
from pcg.graph.graph import Value, apply
from pcg.ops.elementwise import negate
from pcg.ops.layers import mean_loss, sum_loss
from pcg.ops.reductions import max_axis, mean_axis, sum_axis
from pcg.ops.reindexing import expand, permute
from pcg.types.operator import Call

MOST_TURNED = 32
"""The most elements that are reordered by a concatenation of single elements."""


def _reshape(call: AtenCall) -> Value:
    """Return the operand in another shape, with its elements in the same order."""
    return reshaped(call.value("self"), call.shape)


def _transpose(call: AtenCall) -> Value:
    x = call.value("self")
    return swapped(x, call.axis("dim0", x.rank), call.axis("dim1", x.rank))


def _t(call: AtenCall) -> Value:
    x = call.value("self")
    return swapped(x, 0, 1) if x.rank == 2 else x


def _permute(call: AtenCall) -> Value:
    x = call.value("self")
    order = [axis % x.rank for axis in call.integers("dims")]
    moved = [i for i, axis in enumerate(order) if axis != i]
    return swapped(x, *moved) if len(moved) == 2 else permute(x, order)


def _expand(call: AtenCall) -> Value:
    return spread(call.value("self"), call.shape)


def _broadcast(call: AtenCall) -> tuple[Value, ...]:
    return tuple(spread(value, call.shape) for value in call.values("tensors"))


def _concat(call: AtenCall) -> Value:
    values = call.values("tensors")
    axis = call.axis("dim", values[0].rank)
    return joined(values, axis)


def _stack(call: AtenCall) -> Value:
    values = call.values("tensors")
    axis = call.axis("dim", values[0].rank + 1)
    shape = list(shape_of(values[0]))
    shape.insert(axis, 1)
    return joined([reshaped(value, shape) for value in values], axis)


def _pad(call: AtenCall) -> Value:
    """Return the operand padded with a constant, from the last dimension on. Negative pads
    crop."""
    x = call.value("self")
    pads = call.integers("pad")
    for place, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        axis = x.rank - 1 - place
        start, size = max(0, -before), shape_of(x)[axis]
        x = narrowed(x, axis, start, size - start - max(0, -after))
        shape, number = shape_of(x), call.number("value")
        first, last = (_filled(shape, axis, side, number) for side in (before, after))
        x = joined([part for part in (first, x, last) if part is not None], axis)
    return x


def _pad_by(call: AtenCall) -> Value:
    """Return the operand padded with a constant, or with its own elements."""
    if call.arguments["mode"] == "constant":
        value = call.arguments["value"]
        arguments = {**call.arguments, "value": 0.0 if value is None else value}
        return _pad(replace(call, arguments=arguments))
    x, pads = call.value("self"), call.integers("pad")
    if max(map(abs, pads)) > MOST_TURNED:
        raise Unsupported("pad")
    for place, sides in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        x = _extended(x, x.rank - 1 - place, sides, str(call.arguments["mode"]))
    return x


def _extended(x: Value, axis: int, sides: tuple[int, int], mode: str) -> Value:
    """Return an axis extended or cropped at both ends with its own elements."""
    size = shape_of(x)[axis]
    match mode:
        case "circular":
            places = [at % size for at in range(-sides[0], size + sides[1])]
        case "replicate":
            places = [min(max(at, 0), size - 1) for at in range(-sides[0], size + sides[1])]
        case "reflect":
            period = 2 * (size - 1)
            around = (at % period for at in range(-sides[0], size + sides[1]))
            places = [min(at, period - at) for at in around]
        case _:
            raise Unsupported("mode")
    runs: list[tuple[int, int]] = []
    for at in places:
        if runs and at == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((at, 1))
    return joined([narrowed(x, axis, start, count) for start, count in runs], axis)


def _filled(shape: Sequence[int], axis: int, size: int, number: float) -> Value | None:
    """Return a constant of a shape with another size along an axis, or None if that size is 0."""
    if size <= 0:
        return None
    return spread(full(number), (*shape[:axis], size, *shape[axis + 1 :]))


def _slice(call: AtenCall) -> Value:
    x = call.value("self")
    axis = call.axis("dim", x.rank)
    if not call.shape[axis]:
        raise Unsupported("dim")  # a tensor without elements
    first, step = _first(call, shape_of(x)[axis]), call.integer("step")
    if step > 1:
        return strided(x, axis, first, step, call.shape[axis])
    return narrowed(x, axis, first, call.shape[axis])


def strided(x: Value, axis: int, first: int, step: int, count: int) -> Value:
    """Return every ``step``-th element of an axis: the first elements of groups.

    The last group may be incomplete.
    """
    before, size = shape_of(x)[:axis], shape_of(x)[axis]
    after, whole = shape_of(x)[axis + 1 :], min(count, (size - first) // step)
    parts: list[Value] = []
    if whole:
        groups = reshaped(narrowed(x, axis, first, whole * step), (*before, whole, step, *after))
        parts.append(reshaped(narrowed(groups, axis + 1, 0, 1), (*before, whole, *after)))
    if whole < count:
        parts.append(narrowed(x, axis, first + whole * step, 1))
    return joined(parts, axis)


def _slice_scatter(call: AtenCall) -> Value:
    """Return a tensor with a slice of an axis replaced."""
    x, source = call.value("self"), call.value("src")
    axis = call.axis("dim", x.rank)
    call.expect(step=1)
    size = shape_of(source)[axis]
    return _replaced(x, source, axis, _first(call, shape_of(x)[axis]), size)


def _select_scatter(call: AtenCall) -> Value:
    x, source = call.value("self"), call.value("src")
    axis = call.axis("dim", x.rank)
    shape = (*shape_of(x)[:axis], 1, *shape_of(x)[axis + 1 :])
    return _replaced(x, reshaped(source, shape), axis, call.axis("index", shape_of(x)[axis]), 1)


def _replaced(x: Value, source: Value, axis: int, first: int, size: int) -> Value:
    """Return ``x`` with ``size`` elements of an axis replaced by ``source``, from ``first`` on."""
    last, length = first + size, shape_of(x)[axis]
    before = [narrowed(x, axis, 0, first)] if first else []
    after = [narrowed(x, axis, last, length - last)] if last < length else []
    return joined([*before, source, *after], axis)


def _repeat(call: AtenCall) -> Value:
    """Return copies of a tensor side by side, a number of them along each axis."""
    x, times = call.value("self"), call.integers("repeats")
    shape = (1,) * (len(times) - x.rank) + shape_of(x)
    x = reshaped(x, shape)
    for axis, count in enumerate(times):
        if count > 1:
            wide = apply(expand(axis=axis, size=count), x)
            merged = [*shape_of(x)]
            merged[axis] *= count
            x = reshaped(wide, merged)
    return x


def _roll(call: AtenCall) -> Value:
    x, dims, shifts = call.value("self"), call.integers("dims"), call.integers("shifts")
    shape = shape_of(x)
    if not dims:  # torch rolls the flattened tensor
        x, dims = reshaped(x, (prod(shape),)), (0,)
    for dim, shift in zip(dims, shifts, strict=True):
        axis = dim % x.rank
        size = shape_of(x)[axis]
        if moved := shift % size:
            last = narrowed(x, axis, size - moved, moved)
            x = joined([last, narrowed(x, axis, 0, size - moved)], axis)
    return reshaped(x, shape)


def _flip(call: AtenCall) -> Value:
    """Return a flip as a concatenation of single elements, for axes of few elements."""
    x = call.value("self")
    for dim in call.integers("dims"):
        axis = dim % x.rank
        size = shape_of(x)[axis]
        if size > MOST_TURNED:
            raise Unsupported("dims")
        x = joined([narrowed(x, axis, at, 1) for at in reversed(range(size))], axis)
    return x


def _first(call: AtenCall, size: int) -> int:
    """Return the position at which a slice begins."""
    start = call.arguments["start"] or 0
    return min(max(start + size if start < 0 else start, 0), size)


def _select(call: AtenCall) -> Value:
    x = call.value("self")
    axis = call.axis("dim", x.rank)
    at = call.integer("index") % shape_of(x)[axis]
    return reshaped(narrowed(x, axis, at, 1), call.shape)


def _split(call: AtenCall) -> tuple[Value, ...]:
    """Return pieces along an axis, whether given by their number or their sizes."""
    x = call.value("self")
    axis = call.axis("dim", x.rank)
    sizes = [shape[axis] for shape in call.shapes]
    starts = [0, *accumulate(sizes)]
    return tuple(narrowed(x, axis, start, size) for start, size in zip(starts, sizes, strict=False))


def _unbind(call: AtenCall) -> tuple[Value, ...]:
    x = call.value("self")
    axis = call.axis("dim", x.rank)
    pieces = (narrowed(x, axis, at, 1) for at in range(shape_of(x)[axis]))
    return tuple(reshaped(piece, call.shape) for piece in pieces)


def _reduce(made: Callable[..., Call], everything: Callable[[], Call]) -> Entry:
    """Return an entry for a reduction along some axes or all."""

    def entry(call: AtenCall) -> Value:
        x = call.value("self")
        call.expect_room("self")
        dims = call.arguments.get("dim")
        axes = sorted({dim % x.rank for dim in dims} if dims else range(x.rank))
        if len(axes) == x.rank:
            return reshaped(apply(everything(), x), call.shape)
        for axis in reversed(axes):
            x = apply(made(axis=axis), x)
        return reshaped(x, call.shape)

    return entry


MOVES: Mapping[str, Entry] = {
    "aten.view.default": _reshape,
    "aten.reshape.default": _reshape,
    "aten.flatten.using_ints": _reshape,
    "aten.unflatten.int": _reshape,
    "aten._unsafe_view.default": _reshape,
    "aten.unsqueeze.default": _reshape,
    "aten.squeeze.dim": _reshape,
    "aten.squeeze.dims": _reshape,
    "aten.squeeze.default": _reshape,
    "aten.transpose.int": _transpose,
    "aten.t.default": _t,
    "aten.permute.default": _permute,
    "aten.expand.default": _expand,
    "aten.broadcast_tensors.default": _broadcast,
    "aten.cat.default": _concat,
    "aten.stack.default": _stack,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.repeat.default": _repeat,
    "aten.roll.default": _roll,
    "aten.flip.default": _flip,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.unbind.int": _unbind,
}
"""Operators that move elements: each element of a result is an element of an operand."""

_MEAN = _reduce(mean_axis, mean_loss)
_SUM = _reduce(sum_axis, sum_loss)


def _greatest(call: AtenCall) -> Value:
    """Return the maximum along some axes, merged into one. Equal maxima share the gradient
    evenly."""
    x = call.value("self")
    dims = call.arguments.get("dim", [])
    axes = sorted({dim % x.rank for dim in dims} if dims else range(x.rank))
    kept = [axis for axis in range(x.rank) if axis not in axes]
    if not x.rank:
        return x
    if axes != list(range(axes[0], axes[-1] + 1)):
        x, axes = permute(x, [*kept, *axes]), list(range(len(kept), x.rank))
    shape, size = shape_of(x), prod(shape_of(x)[axis] for axis in axes)
    merged = reshaped(x, (*shape[: axes[0]], size, *shape[axes[-1] + 1 :]))
    return reshaped(apply(max_axis(axis=axes[0]), merged), call.shape)


def _least(call: AtenCall) -> Value:
    opposite = {**call.arguments, "self": apply(negate(), call.value("self"))}
    return apply(negate(), _greatest(replace(call, arguments=opposite)))


def _least_and_greatest(call: AtenCall) -> tuple[Value, ...]:
    dim = call.arguments["dim"]
    one = replace(call, arguments={**call.arguments, "dim": [] if dim is None else [dim]})
    return _least(one), _greatest(one)


def _full(call: AtenCall) -> Value:
    number = call.arguments["fill_value" if "fill_value" in call.arguments else "value"]
    if not isinstance(number, (bool, int, float)):
        raise Unsupported("fill_value")
    return spread(full(float(number)), call.shape)


PADS: Mapping[str, Entry] = {
    "aten.constant_pad_nd.default": _pad,
    "aten.pad.default": _pad_by,
}
SUMS: Mapping[str, Entry] = {
    "aten.mean.default": _MEAN,
    "aten.mean.dim": _MEAN,
    "aten.sum.default": _SUM,
    "aten.sum.dim_IntList": _SUM,
}

ENTRIES: Mapping[str, Entry] = {
    **MOVES,
    **SUMS,
    **PADS,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    "aten.full_like.default": _full,
    "aten.fill.Scalar": _full,
    "aten.zero.default": lambda call: spread(full(0.0), call.shape),
    "aten.amax.default": _greatest,
    "aten.amin.default": _least,
    "aten.max.default": _greatest,
    "aten.min.default": _least,
    "aten.aminmax.default": _least_and_greatest,
}
