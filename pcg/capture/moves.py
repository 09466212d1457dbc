"""Translate ATen operators that move elements or reduce along axes into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from pcg.capture.call import AtenCall, Entry, Unsupported
from pcg.capture.pointwise import full
from pcg.capture.shapes import joined, narrowed, reshaped, shape_of, spread, swapped
from pcg.graph.graph import Value, apply
from pcg.ops.layers import mean_loss, sum_loss
from pcg.ops.layout import permute
from pcg.ops.reductions import max_axis, mean_axis, sum_axis
from pcg.types.operator import Call


def _reshape(call: AtenCall) -> Value:
    """Any operator that keeps the elements and their order."""
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
    """A constant before and after the elements of dimensions, or fewer of these; from the last
    dimension on."""
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


def _filled(shape: Sequence[int], axis: int, size: int, number: float) -> Value | None:
    """A number as often as a shape has elements, with another size along an axis."""
    if size <= 0:
        return None
    return spread(full(number), (*shape[:axis], size, *shape[axis + 1 :]))


def _slice(call: AtenCall) -> Value:
    x = call.value("self")
    axis = call.axis("dim", x.rank)
    call.expect(step=1)
    start, size = call.arguments["start"] or 0, shape_of(x)[axis]
    first = min(max(start + size if start < 0 else start, 0), size)
    return narrowed(x, axis, first, call.shape[axis])


def _select(call: AtenCall) -> Value:
    x = call.value("self")
    axis = call.axis("dim", x.rank)
    at = call.integer("index") % shape_of(x)[axis]
    return reshaped(narrowed(x, axis, at, 1), call.shape)


def _split(call: AtenCall) -> tuple[Value, ...]:
    """Pieces along an axis, however their sizes are given."""
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


def _reduce(made: Callable[..., Call], everything: Callable[[], Call] | None) -> Entry:
    """A reduction along some axes, or along all."""

    def entry(call: AtenCall) -> Value:
        x = call.value("self")
        if call.arguments.get("dtype") is not None:
            raise Unsupported("dtype")
        dims = call.arguments.get("dim")
        axes = sorted({dim % x.rank for dim in dims} if dims else range(x.rank))
        if len(axes) == x.rank and everything is not None:
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
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.unbind.int": _unbind,
}
"""Elements of the results are elements of the operands."""

_MEAN = _reduce(mean_axis, mean_loss)
_SUM = _reduce(sum_axis, sum_loss)

ENTRIES: Mapping[str, Entry] = {
    **MOVES,
    "aten.constant_pad_nd.default": _pad,
    "aten.mean.default": _MEAN,
    "aten.mean.dim": _MEAN,
    "aten.sum.default": _SUM,
    "aten.sum.dim_IntList": _SUM,
    "aten.amax.default": _reduce(max_axis, None),
}
