"""Translate reshapes and broadcasts into operators that name the dimensions that they change."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from pcg.capture.aten.call import Shape
from pcg.graph.graph import Value, apply
from pcg.graph.opaque import TensorType, elementwise, whole_or_batched
from pcg.ops.algebra import scale
from pcg.ops.elementwise import shift
from pcg.ops.groups import times_scalar
from pcg.ops.reductions import sum_axis
from pcg.ops.reindexing import (
    concat,
    expand,
    expand_as,
    expand_vector,
    flatten,
    transpose,
    unflatten,
)
from pcg.ops.reindexing import slice as narrow


def shape_of(value: Value) -> Shape:
    return value.type.shape


def of_torch(function: str, result: str, *operands: tuple[Value, str]) -> Value:
    """Apply an element-wise torch function to tensors of one shape.

    Each operand comes with its number format. ``result`` is the format of the result.
    """
    operator = elementwise(function, [number for _, number in operands], result)
    return apply(operator(), *(value for value, _ in operands))


def of_slices(function: str, result: tuple[Shape, str], *operands: tuple[Value, str]) -> Value:
    """Apply a torch function to whole tensors, as a batched function if its slices are independent.

    ``result`` is the shape and the format of its only result.
    """
    reads = [TensorType(shape_of(value), number) for value, number in operands]
    operator = whole_or_batched(function, reads, [TensorType(*result)])
    return apply(operator(), *(value for value, _ in operands))


def swapped(value: Value, dim0: int, dim1: int) -> Value:
    """Return a value with two dimensions swapped. Swapping twice returns the original value."""
    low, high = sorted((dim0, dim1))
    if low == high:
        return value
    call = transpose(dim0=low, dim1=high)
    return value.node.inputs[0] if value.node.call == call else apply(call, value)


def narrowed(value: Value, axis: int, start: int, size: int) -> Value:
    """Return ``size`` elements of an axis, from ``start`` on."""
    if (start, size) == (0, shape_of(value)[axis]):
        return value
    return apply(narrow(axis=axis, start=start, size=size), value)


def joined(values: list[Value], axis: int) -> Value:
    """Return the concatenation of tensors along an axis."""
    whole = values[0]
    for value in values[1:]:
        whole = apply(concat(axis=axis), whole, value)
    return whole


def reshaped(value: Value, shape: Sequence[int]) -> Value:
    """Return the elements in the same order in another shape.

    Unchanged dimensions are left alone. The others are merged and split again, in the smallest
    groups that hold the same number of elements.
    """
    groups = _groups(shape_of(value), tuple(shape))
    # From the last group on, so that the positions before it stay valid.
    for start, old, new in reversed(groups):
        if old == new:
            continue
        if not old:
            value = apply(expand(axis=start, size=1), value)
        elif not new:
            value = _without(value, start)
        else:
            value = _regrouped(value, start, len(old), new)
    return value


def _groups(old: Shape, new: Shape) -> list[tuple[int, Shape, Shape]]:
    """Return groups of dimensions that hold the same elements: the position in ``old`` at which a
    group begins, and its sizes before and after."""
    groups: list[tuple[int, Shape, Shape]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = i, j
        here, there = old[i : i + 1], new[j : j + 1]
        if here == there:
            i, j = i + 1, j + 1
        elif here == (1,) or not there:
            i += 1
        elif there == (1,) or not here:
            j += 1
        else:
            i, j = i + 1, j + 1
            while (left := prod(old[a:i])) != (right := prod(new[b:j])):
                i, j = (i + 1, j) if left < right else (i, j + 1)
        groups.append((a, old[a:i], new[b:j]))
    return groups


def _without(value: Value, axis: int) -> Value:
    """Return a value without a dimension of size 1. It is merged into the dimension before it,
    which can then still be cut, or summed if there is none."""
    if axis:
        return apply(flatten(axis=axis - 1), value)
    return apply(sum_axis(axis=axis), value)


def _regrouped(value: Value, start: int, count: int, new: Shape) -> Value:
    for _ in range(count - 1):
        value = apply(flatten(axis=start), value)
    for at in range(len(new) - 1):
        outer, inner = new[at], prod(new[at + 1 :])
        value = apply(unflatten(axis=start + at, outer=outer, inner=inner), value)
    return value


def _is_constant(value: Value) -> bool:
    """Whether a value depends on no leaf."""
    seen: set[Value] = set()
    pending = [value]
    while pending:
        one = pending.pop()
        if one.node.is_leaf:
            return False
        pending += [operand for operand in one.node.inputs if operand not in seen]
        seen.update(one.node.inputs)
    return True


def broadcast(a: Value, b: Value, shape: Shape) -> tuple[Value, Value]:
    """Return two operands, each repeated to fill ``shape``."""
    return spread(a, shape, b), spread(b, shape, a)


def spread(value: Value, shape: Shape, like: Value | None = None) -> Value:
    """Return a value repeated to fill ``shape``, as torch broadcasts it.

    If ``like`` has that shape, the result is cut in the same way as ``like``. So a bias, for
    example, follows the batch that it is added to.
    """
    own = shape_of(value)
    if own == shape:
        return value
    first = len(shape) - len(own)
    kept = [i for i, size in enumerate(shape) if i >= first and own[i - first] == size]
    lacking = [i for i in range(len(shape)) if i not in kept]
    value = reshaped(value, [shape[i] for i in kept])
    if not kept and _is_constant(value):
        like = None  # 0 times its elements would be NaN where one is infinite
    if like is not None and shape_of(like) == shape:
        if not kept:
            ones = apply(shift(offset=1.0), apply(scale(factor=0.0), like))
            return apply(times_scalar(), ones, value)
        if len(kept) == 1:
            return apply(expand_vector(axis=kept[0]), like, value)
        for axis in lacking[1:]:
            value = apply(expand(axis=axis - 1, size=shape[axis]), value)
        return apply(expand_as(axis=lacking[0]), like, value)
    for axis in lacking:
        value = apply(expand(axis=axis, size=shape[axis]), value)
    return value
