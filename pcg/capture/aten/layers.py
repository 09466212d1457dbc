"""Translate ATen layers and losses into graph operators."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from pcg.capture.aten.attention import attended
from pcg.capture.aten.call import AtenCall, Entry, Unsupported
from pcg.capture.aten.pointwise import scaled
from pcg.capture.aten.shapes import (
    broadcast,
    narrowed,
    of_torch,
    reshaped,
    shape_of,
    spread,
    swapped,
)
from pcg.graph.graph import Value, apply
from pcg.ops import algebra, layers, lookup, norms, reductions
from pcg.ops.constants import ones1, position_ids
from pcg.ops.elementwise import rsqrt, shift
from pcg.ops.reindexing import expand_vector
from pcg.readings.integers import is_natural
from pcg.types.operator import Call


def _product(x: Value, y: Value) -> Value:
    """x @ y."""
    if x.rank >= 1 and y.rank == 2:
        return apply(algebra.matmul(), x, y)
    if x.rank == y.rank > 2 and shape_of(x)[:-2] == shape_of(y)[:-2]:
        return apply(algebra.batch_matmul(), x, y)
    if 1 in (x.rank, y.rank):
        return _with_vector(x, y)
    return _broadcast_product(x, y)


def _broadcast_product(x: Value, y: Value) -> Value:
    """Return x @ y if one has fewer dimensions than the other, or dimensions of size 1."""
    rank = max(x.rank, y.rank)
    shapes = [(*(1,) * (rank - one.rank), *shape_of(one)) for one in (x, y)]
    batch = [max(pair) for pair in zip(*(shape[:-2] for shape in shapes), strict=True)]
    wide = (spread(one, (*batch, *shape_of(one)[-2:])) for one in (x, y))
    return apply(algebra.batch_matmul(), *wide)


def _with_vector(x: Value, y: Value) -> Value:
    """Return x @ y if one of them is a vector."""
    if y.rank > 1:
        return _with_vector(swapped(y, y.rank - 2, y.rank - 1), x)
    column = reshaped(y, (*shape_of(y), 1))
    rows = x if x.rank > 1 else reshaped(x, (1, *shape_of(x)))
    return reshaped(apply(algebra.matmul(), rows, column), shape_of(x)[:-1])


def _matmul(call: AtenCall) -> Value:
    names = ("self", "mat2" if "mat2" in call.arguments else "other")
    return _product(*(call.value(name) for name in names))


def _biased(x: Value, bias: Value | None) -> Value:
    if bias is None:
        return x
    return apply(algebra.add(), *broadcast(x, bias, shape_of(x)))


def _linear(call: AtenCall) -> Value:
    product = _product(call.value("input"), swapped(call.value("weight"), 0, 1))
    return _biased(product, call.maybe("bias"))


def _addmm(call: AtenCall) -> Value:
    product = scaled(_product(call.value("mat1"), call.value("mat2")), call.number("alpha"))
    return _biased(product, scaled(call.value("self"), call.number("beta")))


def _addmv(call: AtenCall) -> Value:
    product = scaled(_product(call.value("mat"), call.value("vec")), call.number("alpha"))
    return _biased(product, scaled(call.value("self"), call.number("beta")))


def _added_products(call: AtenCall) -> Value:
    """Return the sum of the products of a batch of matrices."""
    product = _product(call.value("batch1"), call.value("batch2"))
    total = scaled(apply(reductions.sum_axis(axis=0), product), call.number("alpha"))
    return _biased(total, scaled(call.value("self"), call.number("beta")))


def _bilinear(call: AtenCall) -> Value:
    """Return x1[..., i] * weight[o, i, j] * x2[..., j]: first weight times x2, then times x1."""
    x, y, weight = (call.value(name) for name in ("input1", "input2", "weight"))
    outputs, first, second = shape_of(weight)
    rows = prod(shape_of(x)[:-1])
    matrix = swapped(reshaped(weight, (outputs * first, second)), 0, 1)
    made = apply(algebra.matmul(), reshaped(y, (rows, second)), matrix)
    made = reshaped(made, (rows, outputs, first))
    column = reshaped(x, (rows, first, 1))
    product = reshaped(apply(algebra.batch_matmul(), made, column), call.shape)
    return _biased(product, call.maybe("bias"))


def _safe_softmax(call: AtenCall) -> Value:
    """Return a softmax that gives zeros without a gradient for a row of minus infinities."""
    x, real = call.value("self"), "float32"
    call.expect_room("self")
    axis = call.axis("dim", x.rank)
    most = apply(reductions.max_axis(axis=axis), x)
    kept = [1 if at == axis else size for at, size in enumerate(shape_of(x))]
    wide = spread(reshaped(most, kept), shape_of(x), x)
    nothing = of_torch("aten.eq.Scalar(x0, -inf)", "bool", (wide, real))

    def filled(value: Value) -> Value:
        fill = "aten.masked_fill.Scalar(x0, x1, 0.0)"
        return of_torch(fill, real, (value, real), (nothing, "bool"))

    return filled(apply(layers.softmax(axis=axis), filled(x)))


def _softmax(call: AtenCall) -> Value:
    x = call.value("self")
    call.expect_room("self")
    return apply(layers.softmax(axis=call.axis("dim", x.rank)), x)


def _log_softmax(call: AtenCall) -> Value:
    x = call.value("self")
    call.expect_room("self")
    return apply(reductions.log_softmax(axis=call.axis("dim", x.rank)), x)


def _batch_norm(call: AtenCall) -> Value:
    """Return a batch norm by the batch's statistics. In training, running ones are not read."""
    if not call.arguments["training"]:
        return _normed_by_statistics(call)
    x, weight, bias = (call.maybe(name) for name in ("input", "weight", "bias"))
    assert x is not None, "torch always gives it"
    ones = apply(ones1(size0=shape_of(x)[1]))
    weight = ones if weight is None else weight
    bias = scaled(ones, 0.0) if bias is None else bias
    return apply(norms.batch_norm(eps=call.number("eps")), x, weight, bias)


def _normed_by_statistics(call: AtenCall) -> Value:
    """Return a batch norm in evaluation mode: each channel times a number, plus another."""
    x, weight, bias = (call.value(name) for name in ("input", "weight", "bias"))
    mean, variance = call.value("running_mean"), call.value("running_var")
    inverse = apply(rsqrt(), apply(shift(offset=call.number("eps")), variance))
    factor = apply(algebra.multiply(), weight, inverse)
    moved = scaled(apply(algebra.multiply(), mean, factor), -1.0)
    offset = apply(algebra.add(), bias, moved)
    spread_factor, spread_offset = (apply(expand_vector(axis=1), x, v) for v in (factor, offset))
    return apply(algebra.add(), apply(algebra.multiply(), x, spread_factor), spread_offset)


def _embedding(call: AtenCall) -> Value:
    call.expect(scale_grad_by_freq=False)  # a sparse gradient is the dense one
    ids, table = call.value("indices"), call.value("weight")
    padding = call.integer("padding_idx")
    if padding != -1:
        return _padded_rows(ids, table, padding)
    rows = _first_rows(ids, table)
    return apply(layers.embedding(), ids, table) if rows is None else rows


def _padded_rows(ids: Value, table: Value, padding: int) -> Value:
    """Return rows of a table of which the padding row gets no gradient."""
    rows = apply(layers.embedding(), ids, table)
    kept = of_torch(f"aten.ne.Scalar(x0, {padding})", "bool", (ids, "int64"))
    kept, real = spread(reshaped(kept, (*shape_of(ids), 1)), shape_of(rows), rows), "float32"
    stopped = of_torch("aten.detach.default(x0)", real, (rows, real))
    choice = "aten.where.self(x0, x1, x2)"
    return of_torch(choice, real, (kept, "bool"), (rows, real), (stopped, real))


def _rows_at(call: AtenCall) -> Value:
    """Return the rows of a tensor at integers. To torch, negative ones count from the end."""
    x, indices = call.value("self"), call.arguments["indices"]
    if len(indices) == 2 and "indices" not in call.choices:
        return _one_of_each(x, *indices)
    if len(indices) != 1 or not isinstance(ids := indices[0], Value) or "indices" in call.choices:
        raise Unsupported("indices")
    return _taken(x, ids)


def _one_of_each(x: Value, places: Any, ids: Any) -> Value:
    """Return elements of each sample's second axis, one or several: x[arange(samples), ids]."""
    if not isinstance(places, Value) or not isinstance(ids, Value) or not is_natural(ids):
        raise Unsupported("indices")
    samples, *sizes = shape_of(x)
    wanted = (samples, *(1,) * (ids.rank - 1))
    if not ids.rank or shape_of(places) != wanted or shape_of(ids)[0] != samples:
        raise Unsupported("indices")
    if reshaped(apply(position_ids(size=samples)), wanted) != places:
        raise Unsupported("indices")
    each, rest = prod(shape_of(ids)[1:]), prod(sizes[1:])
    last = swapped(reshaped(x, (samples, sizes[0], rest)), 1, 2)
    chosen = spread(reshaped(ids, (samples, 1, each)), (samples, rest, each))
    picked = swapped(apply(lookup.gather(), last, chosen), 1, 2)
    return reshaped(picked, (*shape_of(ids), *sizes[1:]))


def _rows_selected(call: AtenCall) -> Value:
    x, ids = call.value("self"), call.value("index")
    if call.axis("dim", x.rank):
        raise Unsupported("dim")
    return _taken(x, ids)


def _taken(x: Value, ids: Value) -> Value:
    if not x.rank or not is_natural(ids):
        raise Unsupported("index")
    table = reshaped(x, (shape_of(x)[0], prod(shape_of(x)[1:])))
    return reshaped(apply(layers.embedding(), ids, table), (*shape_of(ids), *shape_of(x)[1:]))


def _gather(call: AtenCall) -> Value:
    """Return a gather along one axis. The other axes are narrowed to the sizes of the indices."""
    x, ids = call.value("self"), call.value("index")
    if not x.rank:
        raise Unsupported("self")
    axis = call.axis("dim", x.rank)
    for other, size in enumerate(shape_of(ids)):
        x = x if other == axis else narrowed(x, other, 0, size)
    last = x.rank - 1
    gathered = apply(lookup.gather(), swapped(x, axis, last), swapped(ids, axis, last))
    return swapped(gathered, axis, last)


def _running_sum(call: AtenCall) -> Value:
    x = call.value("self")
    call.expect_room("self")
    if not x.rank:
        return x
    axis, last = call.axis("dim", x.rank), x.rank - 1
    return swapped(apply(lookup.cumulative_sum(), swapped(x, axis, last)), axis, last)


def _first_rows(ids: Value, table: Value) -> Value | None:
    """Return the first rows of a table if the ids are 0, 1, 2, ..., otherwise None.

    Positions in a sequence are such ids. They may be repeated along outer dimensions.
    """
    repeats: list[Call] = []
    while ids.node.name == "expand" and ids.node.operator_call.integer("axis") < ids.rank - 1:
        repeats.append(ids.node.operator_call)
        ids = ids.node.inputs[0]
    if ids.node.name != "position_ids":
        return None
    rows = narrowed(table, 0, 0, shape_of(ids)[0])
    for call in reversed(repeats):
        rows = apply(call, rows)
    return rows


def _count(call: AtenCall) -> Value:
    """Return an arithmetic progression."""
    count = apply(position_ids(size=call.shape[0]))
    start, step = call.number("start"), call.number("step")
    return apply(shift(offset=start), scaled(count, step)) if start else scaled(count, step)


PRODUCTS: Mapping[str, Entry] = {
    "aten.mm.default": _matmul,
    "aten.bmm.default": _matmul,
    "aten.matmul.default": _matmul,
}

ENTRIES: Mapping[str, Entry] = {
    **PRODUCTS,
    "aten.linear.default": _linear,
    "aten.addmm.default": _addmm,
    "aten.addmv.default": _addmv,
    "aten.addbmm.default": _added_products,
    "aten.bilinear.default": _bilinear,
    "aten._safe_softmax.default": _safe_softmax,
    "aten.softmax.int": _softmax,
    "aten.log_softmax.int": _log_softmax,
    "aten.batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit_functional.default": _batch_norm,
    "aten._native_batch_norm_legit.no_stats": _batch_norm,
    "aten._native_batch_norm_legit_no_training.default": _normed_by_statistics,
    "aten.arange.start_step": _count,
    "aten.embedding.default": _embedding,
    "aten.index.Tensor": _rows_at,
    "aten.index_select.default": _rows_selected,
    "aten.gather.default": _gather,
    "aten.cumsum.default": _running_sum,
    "aten.scaled_dot_product_attention.default": attended,
}
