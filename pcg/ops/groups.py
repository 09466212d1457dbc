"""Operators on groups of neighbours along an axis, and products with slices in their operands.

They express operators of other systems: FlexFlow's replicate and reduce, which copy and sum
elements, and its linear layer, whose operands hold one slice for each shard of the other operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from pcg.types.task import KernelTask

# No operand has the size of a group, r. The ``let`` states it.
repeat_each = Operator(
    "repeat_each",
    "x[a..., j@axis, b...] -> let one[r < times] = 1; out[a..., (j r), b...] = x[a..., j, b...]",
    sizes=("times",),
    kernel=lambda task, x: x.repeat_interleave(task.attributes["times"], task.attributes["axis"]),
)
"""Each element repeated ``times`` times in a row, as for the keys of grouped-query attention."""

sum_groups = Operator(
    "sum_groups",
    "x[a..., (j r)@axis, b...] -> let one[r < times] = 1;"
    " out[a..., j, b...] = sum r: x[a..., (j r), b...]",
    sizes=("times",),
    kernel=lambda task, x: x.unflatten(task.attributes["axis"], (-1, task.attributes["times"])).sum(
        task.attributes["axis"] + 1
    ),
)
"""The sums of groups of ``times`` adjacent elements."""


def _sliced_linear(task: KernelTask, x: Tensor, w: Tensor) -> Tensor:
    p, q, r = x.shape[0], w.shape[0], task.length("r")
    samples, outputs, channels = x.shape[1], w.shape[1], x.shape[2] // r
    slices_x = x.reshape(p, q, samples // q, r, channels)
    slices_w = w.reshape(q, p, outputs // p, r, channels)
    out = torch.einsum("pqnrc,qpmrc->rqnpm", slices_x, slices_w)
    return out.reshape(r, samples, outputs)


sliced_linear = Operator(
    "sliced_linear",
    "x[p, (q n), (r c)], w[q, (p m), (r c)] -> let one[r < shares] = 1;"
    " out[r, (q n), (p m)] = sum c: x[p, (q n), (r c)] * w[q, (p m), (r c)]",
    sizes=("shares",),
    kernel=_sliced_linear,
)
"""A linear layer on samples ``(q n)`` and output channels ``(p m)``. Shard (q, p) of the output
reads slice p of x and slice q of w. The input channels are cut in ``shares``, whose partial sums
are the slices of the output."""

times_scalar = Operator(
    "times_scalar",
    "x[i...], s[] -> out[i...] = x[i...] * s[]",
    kernel=lambda task, x, s: x * s,
)
"""Every element times the single element of another tensor."""

OPERATORS = (repeat_each, sum_groups, sliced_linear, times_scalar)
