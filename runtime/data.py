"""Weights and data that depend on a seed and a name only, never on how a plan cuts them.

Each tensor is generated whole, in double precision on the CPU, and then sliced: so every plan, and
the run on one process that it is checked against, starts from the same values.
"""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor

from pcg.graph import Leaf


def initial_weight(leaf: Leaf, seed: int) -> Tensor:
    """Normal values scaled by 1/sqrt(fan-in), the second to last dimension (Kaiming)."""
    shape = _shape(leaf)
    values = torch.randn(shape, generator=_generator(seed, leaf.name), dtype=torch.float64)
    fan_in = shape[-2] if len(shape) > 1 else 1
    return values / fan_in**0.5


def input_batch(leaf: Leaf, seed: int, step: int) -> Tensor:
    """Normal values, or whole numbers in [0, below) as floats; other values in every step."""
    shape = _shape(leaf)
    generator = _generator(seed, f"{leaf.name}/{step}")
    if leaf.below is not None:
        return torch.randint(leaf.below, shape, generator=generator).to(torch.float64)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _shape(leaf: Leaf) -> tuple[int, ...]:
    assert leaf.type is not None, "a graph that runs has types"
    return leaf.type.shape


def _generator(seed: int, name: str) -> torch.Generator:
    digest = blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))
