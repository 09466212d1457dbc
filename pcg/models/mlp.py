"""Multi-layer perceptrons, trained on a squared error."""

from __future__ import annotations

from itertools import pairwise

from pcg.graph import Graph, Value, apply, leaf
from pcg.ops.algebra import add, matmul, multiply, relu, scale
from pcg.ops.layers import mean_loss


def mlp(batch: int, widths: tuple[int, ...], *, prediction: bool = False) -> Graph:
    """Dense layers without bias, [batch, widths[0]] to [batch, widths[-1]], and ReLU between them.

    The loss is the mean squared error against the input ``target``; with ``prediction`` the
    graph returns the last layer's output as well.
    """
    value = leaf("input", "x", (batch, widths[0]))
    for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
        if i:
            value = apply(relu(), value)
        value = apply(matmul(), value, leaf("weight", f"w{i + 1}", (fan_in, fan_out)))
    target = leaf("input", "target", (batch, widths[-1]))
    loss = squared_error(value, target)
    return Graph((loss, value) if prediction else (loss,))


def squared_error(value: Value, target: Value) -> Value:
    """The mean of (value - target) squared."""
    error = apply(add(), value, apply(scale(factor=-1.0), target))
    return apply(mean_loss(), apply(multiply(), error, error))
