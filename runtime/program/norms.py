"""Operators that compute batch-norm statistics. Only the runtime uses them; no plan has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.ops.norms import batch_norm, ghost_batch_norm, norm_groups_with, norm_with
from pcg.types.operator import Operator
from pcg.types.task import KernelTask

if TYPE_CHECKING:
    from torch import Tensor


def _normed(task: KernelTask, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
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
"""A batch norm that also returns the mean and the unbiased variance of each channel. For a single
element the variance is NaN."""


def _normed_in_groups(
    task: KernelTask, x: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, ...]:
    groups, channels = task.length("g"), x.shape[1]
    wide = torch.promote_types(x.dtype, weight.dtype)
    mean, variance = (x.new_zeros(groups * channels, dtype=wide) for _ in range(2))
    out = norm_groups_with(x, weight, bias, mean, variance, groups, task.attributes["eps"])
    return out, mean[:channels], variance[:channels]


GROUP_NORM = Operator(
    "ghost_batch_norm_with_statistics",
    f"{ghost_batch_norm.equation}; average[c] = mean[0, c];"
    " unbiased[c] = variance[0, c] * |m| * |s...| / (|m| * |s...| - 1)",
    sizes=("groups",),
    reals=("eps",),
    kernel=_normed_in_groups,
)
"""A batch norm in groups that also returns the mean and the unbiased variance of each channel over
the first group. It runs on devices that hold samples of that group."""


def _statistics(task: KernelTask, x: Tensor) -> tuple[Tensor, ...]:
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
"""The mean and the unbiased variance of each channel, without a norm."""

FIRST_STATISTICS = Operator(
    "first_statistics",
    "x[n, c, s...] -> let mean[c] = (sum r < rows, s...: x[r, c, s...]) / (rows * |s...|);"
    " let centred[r < rows, c, s...] = x[r, c, s...] - mean[c];"
    " average[c] = mean[c];"
    " unbiased[c] = (sum r < rows, s...: centred[r, c, s...] * centred[r, c, s...])"
    " / (rows * |s...| - 1)",
    sizes=("rows",),
    kernel=lambda task, x: _statistics(task, x[: task.attributes["rows"]]),
)
"""The mean and the unbiased variance of each channel over the first ``rows`` samples."""
