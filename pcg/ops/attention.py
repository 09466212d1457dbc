"""Attention, with queries ``q[b..., i, d]``, keys ``k[b..., j, d]`` and values ``v[b..., j, e]``.

The run ``b...`` is batch and heads. Scores are scaled by 1/sqrt(|d|).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from pcg.types.task import KernelTask

_OPERANDS = "q[b..., i, d], k[b..., j, d], v[b..., j, e]"
_SCORE = "(sum d: q[b..., i, d] * k[b..., j, d]) * rsqrt(|d|)"
_OUT = (
    "out[b..., i, e] = (sum j: share[b..., i, j] * v[b..., j, e])"
    " / (sum l < |j|: share[b..., i, l])"
)


def _attention(
    task: KernelTask, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)


def _causal_attention(task: KernelTask, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention of this task's rows, which may begin in the middle. Keys after the
    last of them are left out, since no row sees them."""
    if task.start("i") == 0 and q.shape[-2] == k.shape[-2]:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    rows = torch.arange(q.shape[-2], device=q.device) + task.start("i")
    seen = min(task.start("i") + q.shape[-2], k.shape[-2])
    k, v = k[..., :seen, :], v[..., :seen, :]
    columns = torch.arange(seen, device=q.device)
    return _attention(task, q, k, v, columns <= rows.unsqueeze(-1))


attention = Operator(
    "attention",
    f"{_OPERANDS} -> let share[b..., i, j] = exp({_SCORE}); {_OUT}",
    kernel=_attention,
)

# Query i sees the keys j <= i.
causal_attention = Operator(
    "causal_attention",
    f"{_OPERANDS} -> let share[b..., i, j] = exp({_SCORE}) if j <= i else 0; {_OUT}",
    kernel=_causal_attention,
)

# The mask is added to the scores. It has all of their dimensions, so that a cut of batch or heads
# cuts it too. ``expand`` makes it from a shared mask, without a copy.
masked_attention = Operator(
    "masked_attention",
    f"{_OPERANDS}, mask[b..., i, j]"
    f" -> let share[b..., i, j] = exp({_SCORE} + mask[b..., i, j]); {_OUT}",
    kernel=_attention,
)

OPERATORS = (attention, causal_attention, masked_attention)
