"""Operators that give the statistics of what a batch norm norms: the runtime's own, no plan has
them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.operator import Operator
from pcg.ops.norms import batch_norm, norm_with
from pcg.task import Task

if TYPE_CHECKING:
    from torch import Tensor


def _normed(task: Task, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    wide = torch.promote_types(x.dtype, weight.dtype)
    mean, variance = (x.new_zeros(x.shape[1], dtype=wide) for _ in range(2))
    out = norm_with(x, weight, bias, mean, variance, task.attributes["eps"])
    return out, mean, variance


NORM = Operator(
    "batch_norm_with_statistics",
    f"{batch_norm.equation}; average[c] = mean[c];"
    " unbiased[c] = variance[c] * |n| * |s...| / (|n| * |s...| - 1)",
    reals=("eps",),
    kernel=_normed,
)
"""A batch norm that also gives the mean and unbiased variance of each channel. Of a single element
the latter is no number."""


def _statistics(task: Task, x: Tensor) -> tuple[Tensor, ...]:
    x = x.detach()
    if x.dtype in (torch.bfloat16, torch.float16):
        x = x.float()
    axes = [0, *range(2, x.dim())]
    mean = x.mean(axes)
    distance = x - mean.view(-1, *(1 for _ in axes[1:]))
    squares = torch.linalg.vector_norm(distance, dim=axes).square()
    return mean, squares / max(1, x.numel() // x.shape[1] - 1)


STATISTICS = Operator(
    "statistics",
    "x[n, c, s...] -> let mean[c] = (sum n, s...: x[n, c, s...]) / (|n| * |s...|);"
    " let centred[n, c, s...] = x[n, c, s...] - mean[c];"
    " average[c] = mean[c]; unbiased[c] = (sum n, s...: centred[n, c, s...] * centred[n, c, s...])"
    " / (|n| * |s...| - 1)",
    kernel=_statistics,
)
"""Mean and unbiased variance alone."""
