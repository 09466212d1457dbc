"""Translate element-wise ATen operators into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, pi, sqrt

from pcg.capture.aten.call import AtenCall, Entry, Unsupported, holds
from pcg.capture.aten.shapes import broadcast, of_torch, spread
from pcg.graph.graph import Value, apply
from pcg.ops import algebra, elementwise
from pcg.ops.constants import ones1
from pcg.ops.groups import times_scalar
from pcg.ops.reductions import sum_axis
from pcg.types.operator import Call


def _is_number(call: AtenCall, name: str) -> bool:
    return not isinstance(call.arguments[name], Value)


def scaled(value: Value, factor: float) -> Value:
    """``factor`` times a value."""
    return value if factor == 1.0 else apply(algebra.scale(factor=factor), value)


def full(number: float) -> Value:
    """Return a tensor without dimensions. An infinite number is made as a logarithm of 0."""
    if number in (-inf, inf):
        infinite = apply(elementwise.log(), full(0.0))
        return infinite if number < 0 else apply(elementwise.negate(), infinite)
    return scaled(apply(sum_axis(axis=0), apply(ones1(size0=1))), number)


def _unary(made: Callable[[], Call]) -> Entry:
    return lambda call: apply(made(), call.value("self"))


def _binary(made: Callable[[], Call]) -> Entry:
    return lambda call: apply(
        made(), *broadcast(call.value("self"), call.value("other"), call.shape)
    )


def _sum(call: AtenCall, sign: float) -> Value:
    """self + sign * alpha * other."""
    alpha = sign * call.number("alpha")
    if _is_number(call, "self"):
        scaled_other = scaled(call.value("other"), alpha)
        return apply(elementwise.shift(offset=call.number("self")), scaled_other)
    x = call.value("self")
    if _is_number(call, "other"):
        return apply(elementwise.shift(offset=alpha * call.number("other")), x)
    x, y = broadcast(x, call.value("other"), call.shape)
    return apply(algebra.add(), x, scaled(y, alpha))


def _multiply(call: AtenCall) -> Value:
    x = call.value("self")
    if _is_number(call, "other"):
        return scaled(x, call.number("other"))
    y = call.value("other")
    for one, other in ((x, y), (y, x)):
        if other.rank == 0 < one.rank:
            return apply(times_scalar(), one, other)
    return apply(algebra.multiply(), *broadcast(x, y, call.shape))


def _divide(call: AtenCall) -> Value:
    x = call.value("self")
    if _is_number(call, "other"):
        return scaled(x, 1.0 / call.number("other"))
    return apply(elementwise.divide(), *broadcast(x, call.value("other"), call.shape))


def _power(call: AtenCall) -> Value:
    x, exponent = call.value("self"), call.number("exponent")
    if exponent == 2.0:
        return apply(algebra.multiply(), x, x)
    return apply(elementwise.power(exponent=exponent), x)


def _square(call: AtenCall) -> Value:
    return apply(algebra.multiply(), call.value("self"), call.value("self"))


def _clamp(call: AtenCall) -> Value:
    """Return a clamp. With an infinite bound it is torch's element-wise function, or nothing."""
    x, low, high = call.value("self"), call.arguments["min"], call.arguments["max"]
    if low == -inf or high == inf:
        low, high = None if low == -inf else low, None if high == inf else high
        if low is None and high is None:
            return x
        function = f"aten.clamp.default(x0, {low}, {high})"
        return of_torch(function, call.formats[""], (x, call.formats["self"]))
    return apply(elementwise.clamp(low=call.number("min"), high=call.number("max")), x)


def _gelu(call: AtenCall) -> Value:
    x = call.value("self")
    if call.arguments["approximate"] == "none":
        return apply(algebra.gelu(), x)
    cube = apply(algebra.multiply(), x, apply(algebra.multiply(), x, x))
    inner = scaled(apply(algebra.add(), x, scaled(cube, 0.044715)), sqrt(2.0 / pi))
    share = apply(elementwise.shift(offset=1.0), apply(elementwise.tanh(), inner))
    return scaled(apply(algebra.multiply(), x, share), 0.5)


def _same(call: AtenCall) -> Value:
    return call.value("self")


def _cast(call: AtenCall) -> Value:
    """Return a cast to a format that holds all numbers of the operand's. Raises Unsupported for any
    other."""
    old, new = call.formats["self"], call.formats[""]
    if holds(old, new):
        return call.value("self")
    raise Unsupported(new)


def _copied(call: AtenCall) -> Value:
    """Return the elements of another tensor in the shape and format of the operand."""
    old, new = call.formats["src"], call.formats["self"]
    source = spread(call.value("src"), call.shape)
    if holds(old, new):
        return source
    return of_torch(f"aten._to_copy.default(x0, dtype={new})", new, (source, old))


ENTRIES: Mapping[str, Entry] = {
    "aten.relu.default": _unary(algebra.relu),
    "aten.neg.default": _unary(elementwise.negate),
    "aten._neg_view.default": _unary(elementwise.negate),
    "aten.reciprocal.default": _unary(elementwise.reciprocal),
    "aten.exp.default": _unary(elementwise.exp),
    "aten.log.default": _unary(elementwise.log),
    "aten.sqrt.default": _unary(elementwise.sqrt),
    "aten.rsqrt.default": _unary(elementwise.rsqrt),
    "aten.sigmoid.default": _unary(elementwise.sigmoid),
    "aten.tanh.default": _unary(elementwise.tanh),
    "aten.silu.default": _unary(elementwise.silu),
    "aten.gelu.default": _gelu,
    "aten.add.Tensor": lambda call: _sum(call, 1.0),
    "aten.add.Scalar": lambda call: _sum(call, 1.0),
    "aten.sub.Tensor": lambda call: _sum(call, -1.0),
    "aten.mul.Tensor": _multiply,
    "aten.div.Tensor": _divide,
    "aten.maximum.default": _binary(elementwise.maximum),
    "aten.minimum.default": _binary(elementwise.minimum),
    "aten.pow.Tensor_Scalar": _power,
    "aten.square.default": _square,
    "aten.clamp.default": _clamp,
    "aten.clone.default": _same,
    "aten.alias.default": _same,
    "aten.copy.default": _copied,
    "aten._to_copy.default": _cast,
}
