"""Norms: batch norm in training, ghost batch norm, and RMS norm. Layer norm is in ``layers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from pcg.types.task import KernelTask


def _batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Like torch.nn.functional.batch_norm, but also for a single value per channel."""
    return norm_with(x, weight, bias, None, None, eps)


def norm_with(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    eps: float,
) -> Tensor:
    """The same. Given statistics are overwritten with those of ``x``, with unbiased variance."""
    # Torch refuses weights of a narrower format than x, such as constants in a float64 run. Its
    # gradient on a CPU is wrong for a weight that is one number repeated by its strides.
    wide = torch.promote_types(x.dtype, weight.dtype)
    weight, bias = weight.to(wide).contiguous(), bias.to(wide).contiguous()
    cudnn = torch.backends.cudnn.enabled
    return torch.batch_norm(x, weight, bias, mean, variance, True, 1.0, eps, cudnn)


# By the statistics of the whole batch, as in training.
batch_norm = Operator(
    "batch_norm",
    "x[n, c, s...], weight[c], bias[c]"
    " -> let mean[c] = (sum n, s...: x[n, c, s...]) / (|n| * |s...|);"
    " let centred[n, c, s...] = x[n, c, s...] - mean[c];"
    " let variance[c] = (sum n, s...: centred[n, c, s...] * centred[n, c, s...])"
    " / (|n| * |s...|);"
    " out[n, c, s...] = centred[n, c, s...] * rsqrt(variance[c] + eps) * weight[c] + bias[c]",
    reals=("eps",),
    kernel=lambda task, x, weight, bias: _batch_norm(x, weight, bias, task.attributes["eps"]),
)


def _ghost_batch_norm(task: KernelTask, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    eps = task.attributes["eps"]
    return norm_groups_with(x, weight, bias, None, None, task.length("g"), eps)


def norm_groups_with(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    groups: int,
    eps: float,
) -> Tensor:
    """Norm each group of samples by itself, as a batch norm with separate channels for each group.
    Given statistics have all of these channels, one group after another."""
    if groups == 1:  # the usual case under data parallelism, which needs no copies
        return norm_with(x, weight, bias, mean, variance, eps)
    channels = x.shape[1]
    apart = x.unflatten(0, (groups, -1)).transpose(0, 1).flatten(1, 2)
    repeated = weight.repeat(groups), bias.repeat(groups)
    normed = norm_with(apart, *repeated, mean, variance, eps)
    return normed.unflatten(1, (groups, channels)).transpose(0, 1).flatten(0, 1)


# The batch is ``groups`` groups of consecutive samples with separate statistics, as data
# parallelism computes a batch norm.
ghost_batch_norm = Operator(
    "ghost_batch_norm",
    "x[(g m), c, s...], weight[c], bias[c]"
    " -> let mean[g < groups, c] = (sum m, s...: x[(g m), c, s...]) / (|m| * |s...|);"
    " let centred[g, m, c, s...] = x[(g m), c, s...] - mean[g, c];"
    " let variance[g, c] = (sum m, s...: centred[g, m, c, s...] * centred[g, m, c, s...])"
    " / (|m| * |s...|);"
    " out[(g m), c, s...]"
    " = centred[g, m, c, s...] * rsqrt(variance[g, c] + eps) * weight[c] + bias[c]",
    sizes=("groups",),
    reals=("eps",),
    kernel=_ghost_batch_norm,
)

rms_norm = Operator(
    "rms_norm",
    "x[i..., j], weight[j]"
    " -> let square[i...] = (sum k < |j|: x[i..., k] * x[i..., k]) / |j|;"
    " out[i..., j] = x[i..., j] * rsqrt(square[i...] + eps) * weight[j]",
    reals=("eps",),
    kernel=lambda task, x, weight: torch.nn.functional.rms_norm(
        x, (x.shape[-1],), weight, task.attributes["eps"]
    ),
)

OPERATORS = (batch_norm, ghost_batch_norm, rms_norm)
