"""Dense layers without bias, which several models of the zoo are made of."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def dense(widths: tuple[int, ...]) -> list[nn.Module]:
    """Layers from each width to the next, and ReLU between them."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, bias=False), nn.ReLU()]
    return layers[:-1]
