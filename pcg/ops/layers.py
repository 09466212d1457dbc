"""Operators with an inner reduction: softmax, layer norm, embedding, and the losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.ops.lookup import held_rows
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from pcg.types.task import KernelTask

softmax = Operator(
    "softmax",
    "x[a..., j@axis, b...] -> out[a..., j, b...]"
    " = exp(x[a..., j, b...]) / sum k < |j|: exp(x[a..., k, b...])",
    kernel=lambda task, x: torch.softmax(x, task.attributes["axis"]),
)

layer_norm = Operator(
    "layer_norm",
    "x[i..., j], weight[j], bias[j] -> let mean[i...] = (sum k < |j|: x[i..., k]) / |j|;"
    " let centred[i..., k] = x[i..., k] - mean[i...];"
    " let variance[i...] = (sum k < |j|: centred[i..., k] * centred[i..., k]) / |j|;"
    " out[i..., j] = centred[i..., j] * rsqrt(variance[i...] + eps) * weight[j] + bias[j]",
    reals=("eps",),
    kernel=lambda task, x, weight, bias: torch.nn.functional.layer_norm(
        x, (x.shape[-1],), weight, bias, task.attributes["eps"]
    ),
)


def _embedding_kernel(task: KernelTask, ids: Tensor, table: Tensor) -> Tensor:
    """Look up the rows that this task holds. The other rows are in partial sums of other tasks."""
    rows, held = held_rows(task, ids, table.shape[0])
    out = torch.nn.functional.embedding(rows, table)
    return out * held.unsqueeze(-1).to(table.dtype)


embedding = Operator(
    "embedding",
    "out[b..., d] = sum v: (ids[b...] == v) * table[v, d]",
    kernel=_embedding_kernel,
)

sum_loss = Operator("sum_loss", "out[] = sum i...: x[i...]", kernel=lambda task, x: x.sum())

mean_loss = Operator(
    "mean_loss",
    "out[] = (sum i...: x[i...]) / |i...|",
    kernel=lambda task, x: x.sum() / task.elements("i"),
)

OPERATORS = (softmax, layer_norm, embedding, sum_loss, mean_loss)
