"""Cases of functions of torch, of sums by place and of masked writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as f


@dataclass(frozen=True)
class Case:
    """A function of tensors of these shapes and of some buffers of a test. ``positive``: the
    tensors hold positive numbers."""

    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    buffers: tuple[str, ...] = ()
    positive: bool = False


def case(
    function: Callable[..., Tensor],
    *shapes: tuple[int, ...],
    buffers: tuple[str, ...] = (),
    positive: bool = False,
) -> Case:
    return Case(function, shapes, buffers, positive)


BY_PLACE = {
    "counts of ids": case(
        lambda x, at: x * at.to(x.dtype).histc(5, 0, 5), (5,), buffers=("labels",)
    ),
    "sums of rows": case(
        lambda x, y, at: x.index_add(0, at, y, alpha=2), (5, 2), (3, 2), buffers=("labels",)
    ),
    "sums of columns, of nothing before": case(
        lambda y, at: y.new_zeros(2, 4, 3).index_add(1, at, y), (2, 3, 3), buffers=("labels",)
    ),
    "sums by an id of each": case(
        lambda x, y, ids: x.scatter_add(1, ids, y), (3, 5), (2, 3), buffers=("ids",)
    ),
    "sums of messages": case(
        lambda y, at: y.new_zeros(5, 2).scatter_add(0, at[:, None].expand_as(y), y),
        (3, 2),
        buffers=("labels",),
    ),
    "means of messages": case(
        lambda y, at: y.new_zeros(5, 2).scatter_reduce(
            0, at[:, None].expand_as(y), y, "mean", include_self=False
        ),
        (3, 2),
        buffers=("labels",),
    ),
    "means with what was there": case(
        lambda x, y, ids: x.scatter_reduce(1, ids, y, "mean"), (2, 5), (2, 3), buffers=("ids",)
    ),
    "sums and means in its place": case(
        lambda x, y, ids: (
            x.scatter_reduce(1, ids, y, "sum", include_self=False)
            * x.scatter_reduce(1, ids, y, "mean", include_self=False)
        ),
        *((2, 5), (2, 3)),
        buffers=("ids",),
    ),
    "rows added where they are": case(
        lambda x, y, at: x.index_put((at - 4,), y, accumulate=True),
        *((5, 2), (3, 2)),
        buffers=("labels",),
    ),
    "one row added to many": case(
        lambda x, y, ids: torch.ops.aten.index_put.default(x, [None, ids], y, True),
        *((2, 5, 3), (3,)),
        buffers=("ids",),
    ),
    "elements added to a matrix": case(
        lambda x, y, ids: x.index_put((ids[0], ids[1] - 5), y, accumulate=True),
        *((5, 6, 2), (3, 2)),
        buffers=("ids",),
    ),
    "rows where a mask is": case(
        lambda x, y, at: x.masked_scatter(at[:, None] > 0, y), (3, 4), (2, 4), buffers=("labels",)
    ),
    "put where a mask is": case(
        lambda x, y, ids: x.index_put((ids > 1,), y), (2, 3, 4), (4,), buffers=("ids",)
    ),
}

SPREADS = {
    "variance": case(lambda x: x.var((0, 2), correction=0, keepdim=True), (2, 3, 4)),
    "variance and mean": case(lambda x: torch.mul(*torch.var_mean(x, 1)), (4, 6)),
    "deviation": case(lambda x: x.std((0, 2), correction=0, keepdim=True), (2, 3, 4)),
    "deviation and mean": case(lambda x: torch.mul(*torch.std_mean(x, 1)), (4, 6)),
    "binary cross entropy": case(
        lambda x, y, w: f.binary_cross_entropy(x.sigmoid(), y.sigmoid(), w.detach()) * w.sum(),
        *((4, 6), (4, 6), (6,)),
    ),
}
"""Variances, deviations, and a loss with bounds."""
