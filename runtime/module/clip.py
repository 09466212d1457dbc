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
    most: float,
    kind: float,
    error_if_nonfinite: bool,
) -> Tensor:
    """Shorten gradients, by leaf, in place, so that the norm of all is ``most`` at the most; the
    norm before. ``kind``: as in ``torch.linalg.vector_norm``, above 0. Of the ranks that hold a
    piece one counts it. All ranks call together."""
    if not kind > 0:
        raise InputError("norm_type", f"expected a number above 0, got {kind}")
    own = [
        float(torch.linalg.vector_norm(gradient.as_subclass(Tensor).double(), kind))
        for leaf, gradient in gradients
        if gradient.numel() and engine.counts(leaf)
    ]
    norm = norm_of_ranks(engine.world, torch.tensor(own, dtype=torch.float64), kind)
    if error_if_nonfinite and not isfinite(norm):
        raise RuntimeError(f"the norm of all gradients is {norm}, so they cannot be clipped")
    factor = most / (norm + 1e-6)
    # Not "factor < 1": a norm that is no number has to spoil the weights visibly.
    if not factor >= 1.0:
        for _, gradient in gradients:
            gradient.mul_(factor)
    return torch.tensor(norm, dtype=engine.formats.wide, device=engine.world.device)
