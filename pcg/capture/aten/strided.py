"""Translate ``as_strided`` views, whose windows may overlap, into concatenations of slices.

Problem: ``as_strided`` gives the memory address of each element of its result, and no dimension.
Method: each dimension of the result steps along one dimension of the tensor, the one with the
largest stride that divides its own. If its steps leave that dimension, the dimension is merged with
the one before it. Then each dimension of the tensor yields one element, a slice, or windows, which
are concatenations of slices. Exact. Views that depend on the tensor's layout in any other way are
refused, since the layout is for the plan to decide. Complexity: quadratic in the dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pcg.capture.aten.call import AtenCall, Entry, Shape, Unsupported
from pcg.capture.aten.reindexing import MOST_TURNED, strided
from pcg.capture.aten.shapes import joined, narrowed, reshaped, shape_of, spread
from pcg.graph.graph import Value
from pcg.ops.reindexing import permute

Step = tuple[int, int, int]
"""A dimension of the result, its step in elements of the tensor's dimension, and its size."""


@dataclass(frozen=True)
class Lying:
    """A dimension of a tensor in memory."""

    stride: int
    size: int


def _as_strided(call: AtenCall) -> Value:
    x, size, stride = call.value("self"), call.integers("size"), call.integers("stride")
    strides, begin = call.lies["self"]
    offset = begin if call.arguments["storage_offset"] is None else call.integer("storage_offset")
    # Outermost first. A dimension of one element has no meaningful stride.
    order = sorted(range(x.rank), key=lambda axis: (-strides[axis], axis))
    lies = [Lying(strides[axis], n) for axis in order if (n := shape_of(x)[axis]) > 1]
    lies = lies or [Lying(1, 1)]
    if offset < begin or not lies[-1].stride:
        raise Unsupported("storage_offset")
    x = permute(x, order) if order != sorted(order) else x
    counted = list(enumerate(zip(stride, size, strict=True)))
    moved = [(axis, own, count) for axis, (own, count) in counted if own and count > 1]
    while True:
        firsts, steps = _along(lies, moved, offset - begin)
        beyond = [j for j, n in enumerate(lies) if _last(firsts[j], steps[j]) >= n.size]
        if not beyond:
            break
        _merge(lies, beyond[-1])
    own = [count if step else 1 for step, count in zip(stride, size, strict=True)]
    return spread(_viewed(reshaped(x, [n.size for n in lies]), firsts, steps, own), size)


def _merge(lies: list[Lying], at: int) -> None:
    """Merge a dimension with the one before it. Raises Unsupported if they are not contiguous."""
    outer, inner = lies[at - 1], lies[at]
    if not at or outer.stride != inner.stride * inner.size:
        raise Unsupported("size")
    lies[at - 1 : at + 1] = [Lying(inner.stride, outer.size * inner.size)]


def _along(
    lies: Sequence[Lying], moved: Sequence[Step], offset: int
) -> tuple[list[int], list[list[Step]]]:
    """Return, for each dimension of the tensor, its first element in the view and the dimensions of
    the result that step along it."""
    firsts: list[int] = []
    for own in lies:
        first, offset = divmod(offset, own.stride)
        firsts.append(first)
    if offset:
        raise Unsupported("storage_offset")
    steps: list[list[Step]] = [[] for _ in lies]
    for axis, stride, count in moved:
        at = next((j for j, own in enumerate(lies) if stride % own.stride == 0), None)
        if at is None:
            raise Unsupported("stride")
        steps[at].append((axis, stride // lies[at].stride, count))
    return firsts, steps


def _last(first: int, steps: Sequence[Step]) -> int:
    """Return the last element of a dimension that the view reads."""
    return first + sum(step * (count - 1) for _, step, count in steps)


def _viewed(
    x: Value, firsts: Sequence[int], steps: Sequence[Sequence[Step]], size: Sequence[int]
) -> Value:
    """Return the view of all dimensions of a tensor, in the order of the result."""
    kept = [sorted(own, key=lambda step: -step[1]) for own in steps]
    # From the last axis on, so that the positions before it stay valid.
    for axis in reversed(range(len(steps))):
        x = _stepped(x, axis, firsts[axis], kept[axis])
    x = reshaped(x, [count for own in kept for _, _, count in own])
    order = [axis for own in kept for axis, _, _ in own]
    places = [order.index(axis) for axis in sorted(order)]
    return reshaped(permute(x, places) if places != sorted(places) else x, size)


def _stepped(x: Value, axis: int, first: int, steps: Sequence[Step]) -> Value:
    """Return the view of one dimension. ``steps`` are the result's dimensions along it, widest step
    first. They take its place."""
    if not steps:
        return narrowed(x, axis, first, 1)
    (_, step, count), *others = steps
    if others:
        x = windows_of(x, axis, first, step, count, _last(0, others) + 1)
        return _stepped(x, axis + 1, 0, others)
    return narrowed(x, axis, first, count) if step == 1 else strided(x, axis, first, step, count)


def windows_of(x: Value, axis: int, first: int, step: int, count: int, width: int) -> Value:
    """Return ``count`` windows of ``width`` elements of an axis, ``step`` apart. The windows number
    the axis, and their elements the dimension after it."""
    if -(-width // step) > MOST_TURNED:
        raise Unsupported("size")
    before, after = shape_of(x)[:axis], shape_of(x)[axis + 1 :]
    parts: list[Value] = []
    for start in range(0, width, step):
        own = min(step, width - start)
        parts.append(_apart(x, axis, first + start, step, count, own, (before, after)))
    return joined(parts, axis + 1)


def _apart(
    x: Value, axis: int, first: int, step: int, count: int, width: int, around: tuple[Shape, Shape]
) -> Value:
    """Return windows that do not overlap. The last one may end with the axis."""
    (before, after), size = around, shape_of(x)[axis]
    whole = min(count, (size - first) // step)
    parts: list[Value] = []
    if whole:
        groups = reshaped(narrowed(x, axis, first, whole * step), (*before, whole, step, *after))
        parts.append(narrowed(groups, axis + 1, 0, width))
    if whole < count:
        last = narrowed(x, axis, first + whole * step, width)
        parts.append(reshaped(last, (*before, 1, width, *after)))
    return joined(parts, axis)


def _unfold(call: AtenCall) -> Value:
    """Return windows along a dimension, whose elements become the last dimension."""
    x = call.value("self")
    if not x.rank:
        raise Unsupported("self")
    axis, width, step = call.axis("dimension", x.rank), call.integer("size"), call.integer("step")
    if not width:
        raise Unsupported("size")
    made = windows_of(x, axis, 0, step, call.shape[axis], width)
    order = [at for at in range(made.rank) if at != axis + 1]
    return permute(made, [*order, axis + 1]) if axis + 1 < made.rank - 1 else made


ENTRIES: Mapping[str, Entry] = {
    "aten.as_strided.default": _as_strided,
    "aten.unfold.default": _unfold,
}
