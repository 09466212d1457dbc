"""Modules whose ``forward`` changes more than buffers, so that a step may depend on earlier ones.

Each is a function that changes a ``TwoLayers`` and returns a factor of its loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

ROWS, WIDTH = 6, 4
Change = Callable[["TwoLayers"], float]


class TwoLayers(nn.Module):
    """Two layers of equal shapes, dropout, a norm, a list of layers, and a number."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop, self.norm = nn.Dropout(0.0), nn.LayerNorm(WIDTH)
        self.order = [self.first, self.second]
        self.calls, self.history = 0, [0]
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.order[0](self.second(self.first(x).tanh()))
        factor = self.change(self)
        return factor * self.norm(self.drop(hidden)).square().mean()


def swaps_weights(m: TwoLayers) -> float:
    m.first.weight, m.second.weight = m.second.weight, m.first.weight
    return 1.0


def swaps_layers(m: TwoLayers) -> float:
    m.first, m.second = m.second, m.first
    return 1.0


def replaces_a_weight(m: TwoLayers) -> float:
    m.first.weight = nn.Parameter(m.first.weight.detach() * 0.9)
    return 1.0


def drops_a_bias(m: TwoLayers) -> float:
    m.first.register_parameter("bias", None)
    return 1.0


def adds_a_parameter(m: TwoLayers) -> float:
    m.third = nn.Parameter(torch.ones(3))
    return 1.0


def freezes_a_weight(m: TwoLayers) -> float:
    m.first.weight.requires_grad_(False)
    return 1.0


def changes_the_mode(m: TwoLayers) -> float:
    m.drop.train(not m.drop.training)
    return 1.0


def counts(m: TwoLayers) -> float:
    m.calls += 1
    return float(m.calls)


def grows_a_list(m: TwoLayers) -> float:
    m.history.append(1)
    return float(len(m.history))


def turns_layers_around(m: TwoLayers) -> float:
    m.order.reverse()
    return 1.0


def changes_a_constant(m: TwoLayers) -> float:
    m.norm.eps += 1.0
    return 1.0


def only_logs(m: TwoLayers) -> float:
    m.calls += 1
    m.history.append(m.calls)
    return 2.0


REPLACING: Mapping[Change, str] = {
    swaps_weights: "forward puts another tensor in the place of parameter first.weight",
    swaps_layers: "forward puts another tensor in the place of parameter first.weight",
    replaces_a_weight: "forward puts another tensor in the place of parameter first.weight",
    drops_a_bias: "forward puts another tensor in the place of parameter first.bias",
    adds_a_parameter: "forward puts another tensor in the place of parameter third",
    freezes_a_weight: "forward changes requires_grad of parameter first.weight",
    changes_the_mode: "forward changes the mode of drop",
}
"""Changes that a capture sees, of any module."""
REMEMBERING = (counts, grows_a_list, turns_layers_around, changes_a_constant)
"""Changes that show in the second step alone."""
