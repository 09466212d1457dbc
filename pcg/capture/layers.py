"""Translate ATen layers and losses into graph operators."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from pcg.capture.attention import attended
from pcg.capture.call import AtenCall, Entry, Unsupported
from pcg.capture.pointwise import scaled
from pcg.capture.shapes import broadcast, narrowed, of_torch, reshaped, shape_of, spread, swapped
from pcg.graph.graph import Value, apply
from pcg.ops import algebra, layers, norms, reductions
from pcg.ops.constants import ones1, position_ids
from pcg.ops.elementwise import divide, rsqrt, shift
from pcg.ops.layout import expand_vector, permute
from pcg.readings.whole import may_be
from pcg.types.operator import Call

EVERY = {0: "none", 1: "mean", 2: "sum"}
"""Torch's numbers for what a loss does with its elements."""
IGNORED = -100
"""The label that torch leaves out of a loss unless told otherwise; labels are never negative."""


def _product(x: Value, y: Value) -> Value:
    """x @ y."""
    if x.rank >= 1 and y.rank == 2:
        return apply(algebra.matmul(), x, y)
    if x.rank == y.rank > 2 and shape_of(x)[:-2] == shape_of(y)[:-2]:
        return apply(algebra.batch_matmul(), x, y)
    raise Unsupported("ranks")


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


def _softmax(call: AtenCall) -> Value:
    x = call.value("self")
    call.expect(dtype=None)
    return apply(layers.softmax(axis=call.axis("dim", x.rank)), x)


def _log_softmax(call: AtenCall) -> Value:
    x = call.value("self")
    call.expect(dtype=None)
    return apply(reductions.log_softmax(axis=call.axis("dim", x.rank)), x)


def _layer_norm(call: AtenCall) -> Value:
    """Over the last axis only."""
    if len(call.integers("normalized_shape")) != 1:
        raise Unsupported("normalized_shape")
    operator = layers.layer_norm(eps=call.number("eps"))
    return apply(operator, call.value("input"), call.value("weight"), call.value("bias"))


def _batch_norm(call: AtenCall) -> Value:
    """By the statistics of the batch. Those that torch keeps of earlier ones have no part in it."""
    if not call.arguments["training"]:
        return _normed_by_statistics(call)
    x, weight, bias = (call.maybe(name) for name in ("input", "weight", "bias"))
    assert x is not None, "torch always gives it"
    ones = apply(ones1(size0=shape_of(x)[1]))
    weight = ones if weight is None else weight
    bias = scaled(ones, 0.0) if bias is None else bias
    return apply(norms.batch_norm(eps=call.number("eps")), x, weight, bias)


def _normed_by_statistics(call: AtenCall) -> Value:
    """A batch norm outside of training: each channel times a number, plus another."""
    x, weight, bias = (call.value(name) for name in ("input", "weight", "bias"))
    mean, variance = call.value("running_mean"), call.value("running_var")
    inverse = apply(rsqrt(), apply(shift(offset=call.number("eps")), variance))
    factor = apply(algebra.multiply(), weight, inverse)
    moved = scaled(apply(algebra.multiply(), mean, factor), -1.0)
    offset = apply(algebra.add(), bias, moved)
    spread_factor, spread_offset = (apply(expand_vector(axis=1), x, v) for v in (factor, offset))
    return apply(algebra.add(), apply(algebra.multiply(), x, spread_factor), spread_offset)


def _embedding(call: AtenCall) -> Value:
    call.expect(scale_grad_by_freq=False, sparse=False)
    ids, table = call.value("indices"), call.value("weight")
    padding = call.integer("padding_idx")
    if padding != -1:
        return _padded_rows(ids, table, padding)
    rows = _first_rows(ids, table)
    return apply(layers.embedding(), ids, table) if rows is None else rows


def _padded_rows(ids: Value, table: Value, padding: int) -> Value:
    """The rows of a table, of which one gets no gradient."""
    rows = apply(layers.embedding(), ids, table)
    kept = of_torch(f"aten.ne.Scalar(x0, {padding})", "bool", (ids, "int64"))
    kept, real = spread(reshaped(kept, (*shape_of(ids), 1)), shape_of(rows), rows), "float32"
    stopped = of_torch("aten.detach.default(x0)", real, (rows, real))
    choice = "aten.where.self(x0, x1, x2)"
    return of_torch(choice, real, (kept, "bool"), (rows, real), (stopped, real))


def _first_rows(ids: Value, table: Value) -> Value | None:
    """What a look-up finds whose ids are 0, 1, 2, ..., as the places in a sequence are, perhaps
    with dimensions before: the table's first rows. None if the ids are others."""
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
    """0, 1, 2, ..."""
    call.expect(start=0, step=1)
    return apply(position_ids(size=call.shape[0]))


def _every(call: AtenCall, elements: Value) -> Value:
    """What a loss does with its elements: their mean, their sum, or nothing."""
    match EVERY[call.integer("reduction")]:
        case "mean":
            return apply(layers.mean_loss(), elements)
        case "sum":
            return apply(layers.sum_loss(), elements)
        case _:
            return elements


def _squared_error(call: AtenCall) -> Value:
    x, y = call.value("self"), call.value("target")
    x, y = broadcast(x, y, _common(shape_of(x), shape_of(y)))
    error = apply(algebra.add(), x, scaled(y, -1.0))
    return _every(call, apply(algebra.multiply(), error, error))


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that both fill when broadcast."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return tuple(max(pair) for pair in pairs)


def _cross_entropy(call: AtenCall) -> Value:
    """Of classes given by number, over any further axes."""
    logits, target = call.value("self"), call.value("target")
    call.expect(weight=None, label_smoothing=0.0)
    if target.rank != logits.rank - 1 or logits.rank < 2:
        raise Unsupported("target")
    if logits.rank > 2:
        logits = permute(logits, (0, *range(2, logits.rank), 1))
    rows, classes = prod(shape_of(target)), shape_of(logits)[-1]
    logits, target = reshaped(logits, (rows, classes)), reshaped(target, (rows,))
    ignored = call.integer("ignore_index")
    counted = None
    if may_be(target, ignored):
        counted = of_torch(f"aten.ne.Scalar(x0, {ignored})", "bool", (target, "int64"))
        if ignored != IGNORED:  # the operator takes what is no class for what is left out
            left_out = of_torch(f"aten.eq.Scalar(x0, {ignored})", "bool", (target, "int64"))
            fill = f"aten.masked_fill.Scalar(x0, x1, {IGNORED})"
            target = of_torch(fill, "int64", (target, "int64"), (left_out, "bool"))
    mean = apply(reductions.cross_entropy(), logits, target)
    match EVERY[call.integer("reduction")]:
        case "mean":
            if counted is None:
                return mean
            return apply(divide(), scaled(mean, float(rows)), apply(layers.sum_loss(), counted))
        case "sum":
            return scaled(mean, float(rows))
        case _:
            raise Unsupported("reduction")


ENTRIES: Mapping[str, Entry] = {
    "aten.mm.default": _matmul,
    "aten.bmm.default": _matmul,
    "aten.matmul.default": _matmul,
    "aten.linear.default": _linear,
    "aten.addmm.default": _addmm,
    "aten.softmax.int": _softmax,
    "aten.log_softmax.int": _log_softmax,
    "aten.layer_norm.default": _layer_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit_functional.default": _batch_norm,
    "aten._native_batch_norm_legit.no_stats": _batch_norm,
    "aten._native_batch_norm_legit_no_training.default": _normed_by_statistics,
    "aten.arange.start_step": _count,
    "aten.embedding.default": _embedding,
    "aten.scaled_dot_product_attention.default": attended,
    "aten.mse_loss.default": _squared_error,
    "aten.cross_entropy_loss.default": _cross_entropy,
}
