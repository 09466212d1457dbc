"""Read and write diagonals of matrices in the last or any other two dimensions."""

from __future__ import annotations

from collections.abc import Mapping

from pcg.capture.aten.call import AtenCall, Entry
from pcg.capture.aten.reindexing import strided
from pcg.capture.aten.shapes import of_torch, reshaped, shape_of, spread
from pcg.graph.graph import Value, apply
from pcg.ops.constants import position_ids
from pcg.ops.elementwise import shift
from pcg.ops.reindexing import pad, permute

INTEGER = "int64"


def _matrices(call: AtenCall) -> tuple[Value, list[int]]:
    """Return the operand with its two dimensions last, and the order of its dimensions."""
    x = call.value("self")
    first, second = call.axis("dim1", x.rank), call.axis("dim2", x.rank)
    order = [axis for axis in range(x.rank) if axis not in (first, second)] + [first, second]
    return _ordered(x, order), order


def _ordered(x: Value, order: list[int]) -> Value:
    return x if order == sorted(order) else permute(x, order)


def _diagonal(call: AtenCall) -> Value:
    """Return a diagonal: every (columns + 1)-th element of two dimensions merged into one."""
    x, _ = _matrices(call)
    *before, rows, columns = shape_of(x)
    offset, count = call.integer("offset"), call.shape[-1]
    start = offset if offset >= 0 else -offset * columns
    merged = reshaped(x, (*before, rows * columns))
    return strided(merged, len(before), start, columns + 1, count)


def _with_diagonal(call: AtenCall) -> Value:
    """Return a tensor with another diagonal: a choice by position between its elements and those
    of the diagonal, repeated along the columns."""
    x, order = _matrices(call)
    diagonal, real = call.value("src"), call.formats[""]
    *before, rows, columns = shape_of(x)
    offset, count = call.integer("offset"), shape_of(diagonal)[-1]
    above, axis = max(0, -offset), len(before)
    if count < rows:
        diagonal = apply(pad(axis=axis, before=above, size=rows), diagonal)
    repeated = spread(reshaped(diagonal, (*before, rows, 1)), shape_of(x), x)
    row = apply(shift(offset=float(offset)), apply(position_ids(size=rows)))
    places = spread(reshaped(row, (rows, 1)), (rows, columns))
    others = spread(apply(position_ids(size=columns)), (rows, columns))
    same = of_torch("aten.eq.Tensor(x0, x1)", "bool", (places, INTEGER), (others, INTEGER))
    choice = "aten.where.self(x0, x1, x2)"
    mask = spread(same, shape_of(x), x)
    put = of_torch(choice, real, (mask, "bool"), (repeated, call.formats["src"]), (x, real))
    return _ordered(put, [order.index(axis) for axis in range(len(order))])


ENTRIES: Mapping[str, Entry] = {
    "aten.diagonal.default": _diagonal,
    "aten.diagonal_scatter.default": _with_diagonal,
}
