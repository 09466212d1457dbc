"""Look-ups by integer ids, which tensors hold as numbers; running sums, and expert routing.

An id that names no row yields 0. ``embedding`` is in ``layers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from pcg.types.task import KernelTask


def held_rows(task: KernelTask, ids: Tensor, held: int) -> tuple[Tensor, Tensor]:
    """Return the position of each id in this task's block of ``held`` rows, and whether it is
    there.

    The position is 0 for other ids, whose rows are in the partial sums of other tasks.
    """
    rows = ids.long() - task.start("v")
    inside = (rows >= 0) & (rows < held)
    return torch.where(inside, rows, 0), inside


def _gather(task: KernelTask, x: Tensor, ids: Tensor) -> Tensor:
    rows, inside = held_rows(task, ids, x.shape[-1])
    return torch.where(inside, x.gather(-1, rows), 0.0)


# Along the last axis.
gather = Operator(
    "gather",
    "x[a..., v], ids[a..., i] -> out[a..., i] = sum v: (ids[a..., i] == v) * x[a..., v]",
    kernel=_gather,
)


def _embedding_bag(task: KernelTask, ids: Tensor, table: Tensor) -> Tensor:
    rows, inside = held_rows(task, ids, table.shape[0])
    bags = torch.nn.functional.embedding_bag(
        rows.flatten(0, -2) if rows.dim() > 1 else rows.unsqueeze(0),
        table,
        mode="sum",
        per_sample_weights=inside.to(table.dtype).reshape(-1, rows.shape[-1]),
    )
    return bags.reshape(*rows.shape[:-1], table.shape[1])


# The sum of the rows of each bag k of ids.
embedding_bag = Operator(
    "embedding_bag",
    "out[b..., d] = sum k, v: (ids[b..., k] == v) * table[v, d]",
    kernel=_embedding_bag,
)


def _one_hot(task: KernelTask, ids: Tensor) -> Tensor:
    classes = torch.arange(task.attributes["classes"], device=ids.device)
    return (ids.unsqueeze(-1) == classes).to(ids.dtype)


one_hot = Operator(
    "one_hot",
    "ids[b...] -> out[b..., v < classes] = ids[b...] == v",
    sizes=("classes",),
    kernel=_one_hot,
)

# Along the last axis. For ones it is 1, 2, 3, ..., by which padded sequences number their tokens.
cumulative_sum = Operator(
    "cumulative_sum",
    "x[a..., j] -> out[a..., j] = sum k < |j|: x[a..., k] if k <= j else 0",
    kernel=lambda task, x: torch.cumsum(x, -1),
)

# Token t goes to place c of expert e where the mask is 1.
moe_dispatch = Operator(
    "moe_dispatch",
    "x[t, d], mask[t, e, c] -> out[e, c, d] = sum t: mask[t, e, c] * x[t, d]",
    kernel=lambda task, x, mask: torch.einsum("td,tec->ecd", x, mask),
)

# The way back. Here the mask may hold the weights of the experts.
moe_combine = Operator(
    "moe_combine",
    "y[e, c, d], mask[t, e, c] -> out[t, d] = sum e, c: mask[t, e, c] * y[e, c, d]",
    kernel=lambda task, y, mask: torch.einsum("ecd,tec->td", y, mask),
)

OPERATORS = (gather, embedding_bag, one_hot, cumulative_sum, moe_dispatch, moe_combine)
