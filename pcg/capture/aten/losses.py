"""Translate ATen losses into graph operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from pcg.capture.aten.call import AtenCall, Entry, Unsupported
from pcg.capture.aten.pointwise import scaled
from pcg.capture.aten.shapes import broadcast, of_torch, reshaped, shape_of
from pcg.graph.graph import Value, apply
from pcg.ops import algebra, layers, reductions
from pcg.ops.constants import ones1
from pcg.ops.elementwise import divide, shift
from pcg.ops.lookup import one_hot
from pcg.ops.reindexing import expand_vector, permute
from pcg.readings.integers import may_be

EVERY = {0: "none", 1: "mean", 2: "sum"}
"""Torch's numbers for the reduction of a loss."""
REAL = "float32"
IGNORED = -100
"""The label that torch ignores by default. Labels of classes are never negative."""


def _every(call: AtenCall, elements: Value) -> Value:
    """Return the mean or the sum of a loss's elements, or the elements themselves."""
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


def _binary_cross_entropy(call: AtenCall) -> Value:
    """Return the cross entropy of probabilities x and targets t.

    Torch bounds the logarithms from below by -100, and x * (1 - x) in the derivative by 1e-12, so
    that both are finite for probabilities of 0 and 1. Neither is the derivative of the other there.
    So the value depends on x through x - stop(x), which is 0, times torch's derivative.
    """
    x, target, weight = call.value("self"), call.value("target"), call.maybe("weight")
    call.expect_room("self")
    at, goal = (of_torch("aten.detach.default(x0)", REAL, (value, REAL)) for value in (x, target))
    chosen = apply(algebra.multiply(), target, _bounded("log", at))
    rest = apply(shift(offset=1.0), scaled(target, -1.0))
    other = apply(algebra.multiply(), rest, _bounded("log1p", scaled(at, -1.0)))
    terms = apply(algebra.add(), chosen, other)
    product = apply(algebra.multiply(), at, apply(shift(offset=1.0), scaled(at, -1.0)))
    divisor = of_torch("aten.clamp_min.default(x0, 1e-12)", REAL, (product, REAL))
    slope = apply(divide(), apply(algebra.add(), at, scaled(goal, -1.0)), divisor)
    change = apply(algebra.multiply(), apply(algebra.add(), x, scaled(at, -1.0)), slope)
    loss = apply(algebra.add(), scaled(terms, -1.0), change)
    if weight is not None:
        loss = apply(algebra.multiply(), *broadcast(loss, weight, shape_of(loss)))
    return _every(call, loss)


def _bounded(function: str, x: Value) -> Value:
    """Return a logarithm by a function of torch, at least -100."""
    logarithm = of_torch(f"aten.{function}.default(x0)", REAL, (x, REAL))
    return of_torch("aten.clamp_min.default(x0, -100.0)", REAL, (logarithm, REAL))


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which two shapes are broadcast."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return tuple(max(pair) for pair in pairs)


def _rows(x: Value) -> Value:
    """Return scores with one row for each label. Their second axis numbers the classes."""
    if x.rank > 2:
        x = permute(x, (0, *range(2, x.rank), 1))
    return reshaped(x, (prod(shape_of(x)[:-1]), shape_of(x)[-1]))


@dataclass(frozen=True)
class _Labels:
    """Labels of rows. ``counted`` is 1 for each row and 0 for an ignored one, or None if no row is
    ignored."""

    rows: Value
    counted: Value | None

    @classmethod
    def of(cls, target: Value, ignored: int) -> _Labels:
        target = reshaped(target, (prod(shape_of(target)),))
        if not may_be(target, ignored):
            return cls(target, None)
        counted = of_torch(f"aten.ne.Scalar(x0, {ignored})", "bool", (target, "int64"))
        if ignored != IGNORED:  # operators ignore labels that are no class
            left_out = of_torch(f"aten.eq.Scalar(x0, {ignored})", "bool", (target, "int64"))
            fill = f"aten.masked_fill.Scalar(x0, x1, {IGNORED})"
            target = of_torch(fill, "int64", (target, "int64"), (left_out, "bool"))
        return cls(target, counted)


def _cross_entropy(call: AtenCall) -> Value:
    """Return the cross entropy of classes given by number or by probabilities."""
    scores, target = call.value("self"), call.value("target")
    if scores.rank < 2:
        raise Unsupported("self")
    if shape_of(target) == shape_of(scores) and "float" in call.formats["target"]:
        return _of_probabilities(call, scores, target)
    if target.rank != scores.rank - 1:
        raise Unsupported("target")
    labels, rows = _Labels.of(target, call.integer("ignore_index")), _rows(scores)
    plain = call.arguments["weight"] is None and call.number("label_smoothing") == 0.0
    if plain and EVERY[call.integer("reduction")] != "none":
        return _averaged(call, apply(reductions.cross_entropy(), rows, labels.rows), labels)
    return _by_rows(call, apply(reductions.log_softmax(axis=1), rows), labels, shape_of(target))


def _averaged(call: AtenCall, mean: Value, labels: _Labels) -> Value:
    """Return the reduction that the call asks for, given the sum divided by the number of rows."""
    (count,) = shape_of(labels.rows)
    if EVERY[call.integer("reduction")] == "sum":
        return scaled(mean, float(count))
    if labels.counted is None:
        return mean
    total = apply(layers.sum_loss(), labels.counted)
    return apply(divide(), scaled(mean, float(count)), total)


def _by_rows(call: AtenCall, logarithms: Value, labels: _Labels, shape: tuple[int, ...]) -> Value:
    """Return a loss with class weights, with smoothed labels, or without a sum over rows."""
    classes = shape_of(logarithms)[1]
    smoothing = call.number("label_smoothing") if "label_smoothing" in call.arguments else 0.0
    chosen = apply(one_hot(classes=classes), labels.rows)
    weight = call.maybe("weight")
    weight = apply(ones1(size0=classes)) if weight is None else weight
    weighed = apply(algebra.multiply(), logarithms, _for_classes(weight, logarithms))
    weights = _summed(apply(algebra.multiply(), chosen, _for_classes(weight, chosen)))
    loss = scaled(_summed(apply(algebra.multiply(), chosen, weighed)), smoothing - 1.0)
    if smoothing:
        evenly = scaled(_summed(weighed), -smoothing / classes)
        if labels.counted is not None:
            evenly = apply(algebra.multiply(), evenly, labels.counted)
        loss = apply(algebra.add(), loss, evenly)
    match EVERY[call.integer("reduction")]:
        case "none":
            return reshaped(loss, shape)
        case "sum":
            return apply(layers.sum_loss(), loss)
        case _:
            total = apply(layers.sum_loss(), weights)
            return apply(divide(), apply(layers.sum_loss(), loss), total)


def _of_probabilities(call: AtenCall, scores: Value, target: Value) -> Value:
    classes, smoothing = shape_of(scores)[1], call.number("label_smoothing")
    logarithms, shares = apply(reductions.log_softmax(axis=1), _rows(scores)), _rows(target)
    if smoothing:
        shares = apply(shift(offset=smoothing / classes), scaled(shares, 1.0 - smoothing))
    weight = call.maybe("weight")
    if weight is not None:
        weighed = _for_classes(weight, logarithms)
        logarithms = apply(algebra.multiply(), logarithms, weighed)
    loss = scaled(_summed(apply(algebra.multiply(), logarithms, shares)), -1.0)
    every = _every(call, loss)
    return reshaped(every, call.shape)


def _for_classes(weight: Value, rows: Value) -> Value:
    """Return a weight for each class, repeated for all rows."""
    return apply(expand_vector(axis=1), rows, weight)


def _summed(rows: Value) -> Value:
    return apply(reductions.sum_axis(axis=1), rows)


def _nll_loss(call: AtenCall) -> Value:
    """Return the negative log likelihood, given logarithms of probabilities."""
    logarithms, target = call.value("self"), call.value("target")
    if logarithms.rank < 2:
        raise Unsupported("self")
    labels = _Labels.of(target, call.integer("ignore_index"))
    return _by_rows(call, _rows(logarithms), labels, shape_of(target))


ENTRIES: Mapping[str, Entry] = {
    "aten.mse_loss.default": _squared_error,
    "aten.binary_cross_entropy.default": _binary_cross_entropy,
    "aten.cross_entropy_loss.default": _cross_entropy,
    "aten.nll_loss_nd.default": _nll_loss,
}
