"""Reductions along one axis, and the losses that are made of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.types.operator import Operator

if TYPE_CHECKING:
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


def _cross_entropy(task: KernelTask, logits: Tensor, target: Tensor) -> Tensor:
    """This task's part of the mean over all rows."""
    entropy = torch.nn.functional.cross_entropy(logits, target.long(), reduction="sum")
    return entropy / task.sizes["n"]


# The mean over rows n of -log softmax(logits[n])[target[n]].
cross_entropy = Operator(
    "cross_entropy",
    "logits[n, v], target[n] -> let total[n] = log(sum u < |v|: exp(logits[n, u]));"
    " out[] = (sum n, v: (target[n] == v) * (total[n] - logits[n, v])) / |n|",
    kernel=_cross_entropy,
)

OPERATORS = (sum_axis, mean_axis, max_axis, log_softmax, cross_entropy)
