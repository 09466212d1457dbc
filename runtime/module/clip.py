"""Clip gradients by the norm of all ranks' shards."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from pcg.errors import InputError
from runtime.module.engine import RankEngine
from runtime.module.gradient import norm_of_ranks


@torch.no_grad()
def clip(
    engine: RankEngine,
    gradients: Sequence[tuple[str, Tensor]],
    max_norm: float,
    kind: float,
    error_if_nonfinite: bool,
) -> Tensor:
    """Scale gradients (by leaf) in place, so that their common norm is at most ``max_norm``. Return
    the norm before. All ranks call together.

    ``kind``: the order of the norm, as in ``torch.linalg.vector_norm``. One of the ranks that hold
    a block counts it. Raises InputError unless ``kind`` is above 0, and RuntimeError for a norm
    that is not finite if ``error_if_nonfinite`` is set.
    """
    if not kind > 0:
        raise InputError("norm_type", f"expected a number above 0, got {kind}")
    own_norms = [
        float(torch.linalg.vector_norm(gradient.as_subclass(Tensor).double(), kind))
        for leaf, gradient in gradients
        if gradient.numel() and engine.counts(leaf)
    ]
    norm = norm_of_ranks(engine.world, torch.tensor(own_norms, dtype=torch.float64), kind)
    if error_if_nonfinite and not isfinite(norm):
        raise RuntimeError(f"the norm of all gradients is {norm}, so they cannot be clipped")
    factor = max_norm / (norm + 1e-6)
    # Not "factor < 1": a NaN norm must not be hidden.
    if not factor >= 1.0:
        for _, gradient in gradients:
            gradient.mul_(factor)
    return torch.tensor(norm, dtype=engine.formats.wide, device=engine.world.device)
