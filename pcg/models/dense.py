"""Dense layers without bias, a part of several models of the zoo."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def dense(widths: tuple[int, ...]) -> list[nn.Module]:
    """Return layers from each width to the next, with a ReLU between them."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, bias=False), nn.ReLU()]
    return layers[:-1]
