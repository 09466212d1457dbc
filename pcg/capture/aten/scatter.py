"""Translate sums of elements by index, and writes to the positions of a mask.

Index tensors that repeat along all dimensions but one, as edge indices repeat along features, index
whole slices. Several index tensors become one index into the merged dimensions. As in torch,
``index_put`` counts negative indices from the end, and the other functions accept none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from math import prod

from pcg.capture.aten.call import AtenCall, Entry, Shape, Unsupported
from pcg.capture.aten.pointwise import full, scaled
from pcg.capture.aten.shapes import narrowed, of_torch, reshaped, shape_of, spread
from pcg.graph.graph import Value, apply
from pcg.ops import algebra, elementwise, layers, lookup, scatter
from pcg.ops.constants import ones1
from pcg.ops.reindexing import pad
from pcg.readings.integers import is_natural

WRAPPING = frozenset({"bool", "uint8", "int8", "int16"})
"""Number formats so narrow that a few numbers may have a sum that does not fit."""
MOST_MERGED = 1 << 24
"""The most elements of merged dimensions. Ids are float32 numbers, exact up to this size."""
INTEGER, REAL = "int64", "float32"


def added_at(places: int, axis: int, ids: Value, source: Value) -> Value:
    """Return ``places`` sums of a source's elements along an axis, by the place that ids name.

    The ids have one dimension, or all dimensions of the source.
    """
    like = apply(ones1(size0=places))
    own = ids if ids.rank == 1 else _along_one(ids, axis)
    if own is not None:
        return apply(scatter.index_add(axis=axis), like, own, source)
    return apply(scatter.scatter_add(axis=axis), like, ids, source)


def _along_one(ids: Value, axis: int) -> Value | None:
    """Return ids as a vector along an axis, or None if they may differ along another axis too."""
    along: Value | None = None
    at: int | None = axis
    while at is not None:
        along = ids if ids.rank == 1 else along
        at = _lower(ids, at)
        ids = ids if at is None else ids.node.inputs[0]
    return along


def _lower(ids: Value, axis: int) -> int | None:
    """Return an axis' position before ids were expanded or flattened, or None if it was absent."""
    if ids.node.is_leaf:
        return None
    call = ids.node.operator_call
    if call.name == "expand":
        return _before_expand(call.integer("axis"), axis)
    if call.name == "flatten":
        return _before_flatten(shape_of(ids.node.inputs[0]), call.integer("axis"), axis)
    return None


def _before_expand(at: int, axis: int) -> int | None:
    """Return an axis' position before a tensor was expanded along another, or None if absent."""
    return None if at == axis else axis - (at < axis)


def _before_flatten(shape: Shape, at: int, axis: int) -> int | None:
    """Return an axis' position before two dimensions were merged, or None if it is both of them."""
    if at != axis:
        return axis + (axis > at)
    sizes = shape[at : at + 2]
    return at + sizes.index(max(sizes)) if 1 in sizes else None


def _sum(base: Value, added: Value) -> Value:
    return added if _is_zero(base) else apply(algebra.add(), base, added)


def _is_zero(value: Value) -> bool:
    """Whether a value is a constant of zeros."""
    while value.node.name == "expand":
        value = value.node.inputs[0]
    return value == full(0.0)


def _expect_sums(call: AtenCall) -> None:
    """Raise Unsupported if a sum of numbers may not fit the result's format."""
    if call.formats["self"] in WRAPPING or not call.value("self").rank:
        raise Unsupported("self")


def _index_add(call: AtenCall) -> Value:
    _expect_sums(call)
    x, ids, source = (call.value(name) for name in ("self", "index", "source"))
    axis = call.axis("dim", x.rank)
    ids = reshaped(ids, (shape_of(source)[axis],))
    added = added_at(shape_of(x)[axis], axis, ids, scaled(source, call.number("alpha")))
    return _sum(x, added)


def _scatter_add(call: AtenCall) -> Value:
    return _sum(call.value("self"), _scattered(call, call.value("src")))


def _scattered(call: AtenCall, source: Value) -> Value:
    """Return sums over as much of a source as there are ids for, padded with zeros."""
    _expect_sums(call)
    x, ids = call.value("self"), call.value("index")
    axis = call.axis("dim", x.rank)
    for other, size in enumerate(shape_of(ids)):
        source = narrowed(source, other, 0, size)
    added = added_at(shape_of(x)[axis], axis, ids, source)
    for other, (have, size) in enumerate(zip(shape_of(added), shape_of(x), strict=True)):
        added = added if have == size else apply(pad(axis=other, before=0, size=size), added)
    return added


def _scatter_reduce(call: AtenCall) -> Value:
    """Return sums or means by index, with or without the elements that were there before."""
    kind, with_self = call.arguments["reduce"], bool(call.arguments["include_self"])
    if kind not in ("sum", "mean") or "float" not in call.formats["self"]:
        raise Unsupported("reduce")
    x, total = call.value("self"), _scattered(call, call.value("src"))
    if kind == "sum" and (with_self or _is_zero(x)):
        return _sum(x, total)
    count = _scattered(call, spread(full(1.0), shape_of(call.value("src"))))
    if not with_self and not _is_zero(x):
        nothing = of_torch("aten.eq.Scalar(x0, 0)", "bool", (count, REAL))
        x = _chosen(call, nothing, x, spread(full(0.0), shape_of(x)))
    total = _sum(x, total)
    if kind == "sum":
        return total
    ones = spread(full(1.0), shape_of(count))
    number = algebra.add() if with_self else elementwise.maximum()
    return apply(elementwise.divide(), total, apply(number, count, ones))


def _index_put(call: AtenCall) -> Value:
    """Return a tensor with values added at the places that integer tensors name, or with values put
    or added at the positions of a mask. Indexed dimensions have to be adjacent."""
    if "indices" in call.choices:
        return _put_where(call)
    _expect_sums(call)
    call.expect(accumulate=True)
    x, values = call.value("self"), call.value("values")
    listed = call.arguments["indices"]
    dims = [dim for dim, index in enumerate(listed) if index is not None]
    if not dims or any(b != a + 1 for a, b in pairwise(dims)):
        raise Unsupported("indices")
    indices = [index for index in listed if isinstance(index, Value)]
    first, last = dims[0], dims[-1] + 1
    before, chosen, after = shape_of(x)[:first], shape_of(x)[first:last], shape_of(x)[last:]
    ids = _merged(indices, chosen)
    source = spread(values, (*before, *shape_of(ids), *after))
    number = prod(shape_of(ids))
    source = reshaped(source, (*before, number, *after))
    added = added_at(prod(chosen), first, reshaped(ids, (number,)), source)
    return _sum(x, reshaped(added, shape_of(x)))


def _counted(call: AtenCall) -> Value:
    """Return how often each integer from 0 on occurs. Torch counts the upper end in the last bin,
    and nothing beyond it."""
    x, bins, real = call.value("self"), call.integer("bins"), call.formats["self"]
    call.expect(min=0, max=bins)
    if not is_natural(x):
        raise Unsupported("self")
    below = of_torch(f"aten.lt.Scalar(x0, {bins})", "bool", (x, real))
    at_end = of_torch(f"aten.eq.Scalar(x0, {bins})", "bool", (x, real))
    within = apply(algebra.multiply(), x, below)
    places = apply(algebra.add(), within, scaled(at_end, float(bins - 1)))
    ones, number = apply(algebra.add(), below, at_end), prod(shape_of(x))
    return added_at(bins, 0, reshaped(places, (number,)), reshaped(ones, (number,)))


def _put_where(call: AtenCall) -> Value:
    """Return a tensor with the same values put or added at all positions of a mask."""
    x, values, listed = call.value("self"), call.value("values"), call.arguments["indices"]
    first, *others = (dim for dim, index in enumerate(listed) if index is not None)
    mask = listed[first]
    if others or not isinstance(mask, Value) or not mask.rank:
        raise Unsupported("indices")
    after = x.rank - first - mask.rank
    lacking = first + 1 + after - values.rank
    own = (*(1,) * lacking, *shape_of(values))
    if lacking < 0 or own[first] != 1:
        raise Unsupported("values")
    values = reshaped(values, (*own[:first], *(1,) * mask.rank, *own[first + 1 :]))
    values = spread(values, shape_of(x), x)
    if not call.arguments["accumulate"]:
        return _chosen(call, _spread_after(mask, first, x), values, x)
    _expect_sums(call)
    zeros = spread(full(0.0), shape_of(x))
    return _sum(x, _chosen(call, _spread_after(mask, first, x), values, zeros))


def _spread_after(mask: Value, first: int, x: Value) -> Value:
    """Return a mask of the dimensions from ``first`` on, repeated to the shape of ``x``."""
    after = x.rank - first - mask.rank
    return spread(reshaped(mask, (*(1,) * first, *shape_of(mask), *(1,) * after)), shape_of(x), x)


def _chosen(call: AtenCall, mask: Value, x: Value, y: Value) -> Value:
    """Return the elements of ``x`` where a mask is true, and those of ``y`` elsewhere."""
    kind = call.formats["self"]
    return of_torch("aten.where.self(x0, x1, x2)", kind, (mask, "bool"), (x, kind), (y, kind))


def _masked_scatter(call: AtenCall) -> Value:
    """Return a tensor with the rows of a source put, in order, at the positions of a mask.

    A row's place in the source is the number of masked rows before it. If the source has too few
    rows, which torch refuses, the missing ones are infinite.
    """
    x, source = call.value("self"), call.value("source")
    if "float" not in call.formats["self"] or not x.rank:
        raise Unsupported("self")
    mask = _of_rows(spread(call.value("mask"), shape_of(x)))
    rows, width = prod(shape_of(mask)), prod(shape_of(x)[mask.rank :])
    held, rest = divmod(prod(shape_of(source)), width)
    if rest or not held or rows > MOST_MERGED:
        raise Unsupported("source")
    seen = apply(lookup.cumulative_sum(), reshaped(mask, (rows,)))
    places = apply(elementwise.shift(offset=-1.0), seen)
    taken = apply(layers.embedding(), places, reshaped(source, (held, width)))
    beyond = of_torch(f"aten.ge.Scalar(x0, {held})", "bool", (places, INTEGER))
    beyond = spread(reshaped(beyond, (rows, 1)), (rows, width), taken)
    fill = "aten.masked_fill.Scalar(x0, x1, inf)"
    taken = of_torch(fill, REAL, (taken, REAL), (beyond, "bool"))
    return _chosen(call, _spread_after(mask, 0, x), reshaped(taken, shape_of(x)), x)


def _of_rows(mask: Value) -> Value:
    """Return a mask without the last dimensions along which it is repeated."""
    while mask.rank > 1 and not mask.node.is_leaf:
        if mask.node.name != "expand" or mask.node.operator_call.integer("axis") != mask.rank - 1:
            break
        mask = mask.node.inputs[0]
    return mask


def _merged(indices: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Return the ids of merged dimensions, given ids for each of these dimensions.

    The ids are broadcast to one shape. If one of them is out of range, the merged id is negative.
    """
    if len(indices) == 1:
        return _from_the_start(indices[0], sizes[0])
    if prod(sizes) > MOST_MERGED:
        raise Unsupported("indices")
    rank = max(index.rank for index in indices)
    shapes = [(*(1,) * (rank - index.rank), *shape_of(index)) for index in indices]
    wide = tuple(max(have) for have in zip(*shapes, strict=True))
    parts: list[Value] = []
    for at, (index, size) in enumerate(zip(indices, sizes, strict=True)):
        own = _from_the_start(spread(index, wide), size)
        inside = _inside(own, size)
        parts.append(scaled(apply(algebra.multiply(), own, inside), float(prod(sizes[at + 1 :]))))
        whole = float(prod(sizes))
        parts.append(apply(elementwise.shift(offset=-whole), scaled(inside, whole)))
    return reduce(lambda total, part: apply(algebra.add(), total, part), parts)


def _inside(ids: Value, size: int) -> Value:
    """Return 1 for each id from 0 to ``size`` - 1, and 0 for others."""
    below = of_torch(f"aten.lt.Scalar(x0, {size})", "bool", (ids, INTEGER))
    if is_natural(ids):
        return below
    above = of_torch("aten.ge.Scalar(x0, 0)", "bool", (ids, INTEGER))
    return apply(algebra.multiply(), below, above)


def _from_the_start(ids: Value, size: int) -> Value:
    """Return ids of ``size`` elements with negative ones counted from the end."""
    if is_natural(ids):
        return ids
    below = of_torch("aten.lt.Scalar(x0, 0)", "bool", (ids, INTEGER))
    return apply(algebra.add(), ids, scaled(below, float(size)))


ENTRIES: Mapping[str, Entry] = {
    "aten.index_add.default": _index_add,
    "aten.scatter_add.default": _scatter_add,
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten.index_put.default": _index_put,
    "aten.histc.default": _counted,
    "aten.masked_scatter.default": _masked_scatter,
}
