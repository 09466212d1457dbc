"""Translate bags of rows of a table: their sums, means, or greatest elements.

If all bags have the same length, as the rows of a matrix of ids have, they become one operator or a
reduction along an axis. Otherwise offsets say where each bag begins. The bag of a row is then found
among the offsets by torch's ``searchsorted``, and rows are added up by bag.
"""

from __future__ import annotations

from collections.abc import Mapping

from pcg.capture.aten.call import AtenCall, Entry
from pcg.capture.aten.pointwise import full, scaled
from pcg.capture.aten.scatter import added_at
from pcg.capture.aten.shapes import narrowed, of_slices, of_torch, reshaped, shape_of, spread
from pcg.graph.graph import Value, apply
from pcg.ops import algebra, elementwise, layers, lookup
from pcg.ops.constants import position_ids
from pcg.ops.reductions import max_axis, sum_axis

SUM, MEAN, GREATEST = range(3)
"""Torch's numbers for the reduction of a bag."""
REAL = "float32"


def _embedding_bag(call: AtenCall) -> tuple[Value, ...]:
    call.expect(scale_grad_by_freq=False)  # a sparse gradient is the dense one
    ids, table = call.value("indices"), call.value("weight")
    mode, length = call.integer("mode"), _equal_length(call)
    plain = call.arguments["per_sample_weights"] is None and call.integer("padding_idx") == -1
    if length is not None and plain and mode != GREATEST:
        of_bags = reshaped(ids, (call.shape[0], length))
        out = apply(lookup.embedding_bag(), of_bags, table)
        return (scaled(out, 1.0 / length) if mode == MEAN else out,)
    rows, counted = apply(layers.embedding(), ids, table), _counted(call, ids)
    if (weights := call.maybe("per_sample_weights")) is not None:
        rows = apply(algebra.multiply(), rows, _for_rows(weights, rows))
    if mode == GREATEST:
        return (_greatest(call, rows, counted, length),)
    if counted is not None:
        rows = apply(algebra.multiply(), rows, _for_rows(counted, rows))
    total = _added(call, rows, length)
    if mode == SUM:
        return (total,)
    if counted is None:
        counted = spread(full(1.0), shape_of(ids))
    count = apply(elementwise.maximum(), sizes := _added(call, counted, length), _ones(sizes))
    return (apply(elementwise.divide(), total, _for_rows(count, total)),)


def _counted(call: AtenCall, ids: Value) -> Value | None:
    """Return 1 for each id that counts and 0 for padding, or None if there is no padding."""
    padding = call.integer("padding_idx")
    if padding == -1:
        return None
    return of_torch(f"aten.ne.Scalar(x0, {padding})", "bool", (ids, "int64"))


def _for_rows(numbers: Value, rows: Value) -> Value:
    """Return one number for each row, repeated for the elements of the row."""
    return spread(reshaped(numbers, (shape_of(rows)[0], 1)), shape_of(rows), rows)


def _ones(like: Value) -> Value:
    return spread(full(1.0), shape_of(like))


def _equal_length(call: AtenCall) -> int | None:
    """Return the length of all bags, or None if they may differ."""
    offsets, size = call.value("offsets"), shape_of(call.value("indices"))[0]
    bags = shape_of(offsets)[0]
    if call.arguments["include_last_offset"] or size % bags or _step(offsets) != size // bags:
        return None
    return size // bags


def _step(offsets: Value) -> float | None:
    """Return the step of an arithmetic progression that begins at 0, or None if it is not known."""
    node, step = offsets.node, 1.0
    if not node.is_leaf and node.name == "scale":
        factor, node = node.operator_call.values["factor"], node.inputs[0].node
        step = factor if isinstance(factor, float) else step
    if not node.is_leaf and node.name == "position_ids":
        return step
    return None


def _places(call: AtenCall) -> Value:
    """Return the number of the bag of each id: how many bags begin at or before it, less one.

    An offset that gives the end of the last bag is ignored, since it has to be the number of ids.
    """
    offsets = narrowed(call.value("offsets"), 0, 0, call.shape[0])
    (size,) = shape_of(call.value("indices"))
    where = (apply(position_ids(size=size)), "int64")
    search = "aten.searchsorted.Tensor(x0, x1, right=True)"
    begins = (offsets, call.formats["offsets"])
    begun = of_slices(search, ((size,), "int64"), begins, where)
    return apply(elementwise.shift(offset=-1.0), begun)


def _added(call: AtenCall, rows: Value, length: int | None) -> Value:
    """Return the sum of each bag, of rows or of single numbers."""
    shape = (call.shape[0], *shape_of(rows)[1:])
    if length is not None:
        return apply(sum_axis(axis=1), reshaped(rows, (shape[0], length, *shape[1:])))
    return added_at(shape[0], 0, _places(call), rows)


def _greatest(call: AtenCall, rows: Value, counted: Value | None, length: int | None) -> Value:
    """Return the greatest elements of each bag; zeros for a bag without ids."""
    if counted is not None:
        absent = of_torch("aten.logical_not.default(x0)", "bool", (counted, "bool"))
        rows = _filled(rows, _for_rows(absent, rows), "-inf")
    if length is not None:
        of_bags = reshaped(rows, (call.shape[0], length, *shape_of(rows)[1:]))
        maximum = apply(max_axis(axis=1), of_bags)
    else:
        shape = (call.shape[0], *shape_of(rows)[1:])
        reduce = "aten.scatter_reduce.two(x0, 0, x1, x2, 'amax', include_self=False)"
        places = (spread(reshaped(_places(call), (shape_of(rows)[0], 1)), shape_of(rows)), "int64")
        zeros = (spread(full(0.0), shape), REAL)
        maximum = of_slices(reduce, (shape, REAL), zeros, places, (rows, REAL))
    if counted is None:
        return maximum
    return _filled(maximum, of_torch("aten.eq.Scalar(x0, -inf)", "bool", (maximum, REAL)), "0.0")


def _filled(value: Value, where: Value, number: str) -> Value:
    fill = f"aten.masked_fill.Scalar(x0, x1, {number})"
    return of_torch(fill, REAL, (value, REAL), (where, "bool"))


ENTRIES: Mapping[str, Entry] = {
    "aten._embedding_bag.default": _embedding_bag,
    "aten._embedding_bag_forward_only.default": _embedding_bag,
}
