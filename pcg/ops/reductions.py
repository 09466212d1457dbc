"""Reductions along one axis, and losses that consist of one."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pcg.lazy import torch
from pcg.ops.lookup import held_rows
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pcg.types.task import KernelTask

sum_axis = Operator(
    "sum_axis",
    "x[a..., j@axis, b...] -> out[a..., b...] = sum j: x[a..., j, b...]",
    kernel=lambda task, x: x.sum(task.attributes["axis"]),
)

mean_axis = Operator(
    "mean_axis",
    "x[a..., j@axis, b...] -> out[a..., b...] = (sum j: x[a..., j, b...]) / |j|",
    kernel=lambda task, x: x.sum(task.attributes["axis"]) / task.sizes["j"],
)

max_axis = Operator(
    "max_axis",
    "x[a..., j@axis, b...] -> out[a..., b...] = max j: x[a..., j, b...]",
    kernel=lambda task, x: x.amax(task.attributes["axis"]),
)

log_softmax = Operator(
    "log_softmax",
    "x[a..., j@axis, b...] -> out[a..., j, b...]"
    " = x[a..., j, b...] - log(sum k < |j|: exp(x[a..., k, b...]))",
    kernel=lambda task, x: torch.log_softmax(x, task.attributes["axis"]),
)


@lru_cache(maxsize=1)
def _with_gradient() -> Callable[[Tensor, int], Tensor]:
    """Return a ``torch.logsumexp`` along an axis whose gradient is 0 where all numbers are -inf.

    A block of masked classes may be so, and torch's own gradient is NaN there. (The class is made
    here because it needs torch.)
    """

    class LogSumExp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, axis: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            out = torch.logsumexp(x, axis)
            ctx.save_for_backward(x, out)
            ctx.axis = axis
            return out

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
            x, out = ctx.saved_tensors
            total = out.masked_fill(out == -torch.inf, 0.0).unsqueeze(ctx.axis)
            return (x - total).exp_().mul_(gradient.unsqueeze(ctx.axis)), None

    return LogSumExp.apply


# No exponential overflows: numbers are taken relative to the greatest.
logsumexp = Operator(
    "logsumexp",
    "x[a..., j@axis, b...] -> out[a..., b...] = log(sum j: exp(x[a..., j, b...]))",
    kernel=lambda task, x: _with_gradient()(x, task.attributes["axis"]),
)


def _nll(task: KernelTask, logits: Tensor, target: Tensor, total: Tensor) -> Tensor:
    """Compute the rows whose class this task holds. The others belong to other tasks."""
    classes, held = held_rows(task, target, logits.shape[1])
    chosen = logits.gather(1, classes.unsqueeze(1)).squeeze(1)
    return torch.where(held, total - chosen, 0.0)


# The negative log-likelihood of each row's class, where ``total`` is the logsumexp of the row's
# logits. If classes are cut, all devices but one contribute 0 to a row.
nll = Operator(
    "nll",
    "logits[n, v], target[n], total[n]"
    " -> out[n] = sum v: (target[n] == v) * (total[n] - logits[n, v])",
    kernel=_nll,
)


def _cross_entropy(task: KernelTask, logits: Tensor, target: Tensor) -> Tensor:
    """Return this task's part of the mean over all rows."""
    entropy = torch.nn.functional.cross_entropy(logits, target.long(), reduction="sum")
    return entropy / task.sizes["n"]


# The mean over rows n of -log softmax(logits[n])[target[n]].
cross_entropy = Operator(
    "cross_entropy",
    "logits[n, v], target[n] -> let total[n] = log(sum u < |v|: exp(logits[n, u]));"
    " out[] = (sum n, v: (target[n] == v) * (total[n] - logits[n, v])) / |n|",
    kernel=_cross_entropy,
)

OPERATORS = (sum_axis, mean_axis, max_axis, log_softmax, logsumexp, nll, cross_entropy)
