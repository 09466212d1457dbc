"""Causal convolutions over time, and a differential equation."""

from __future__ import annotations

import torch
from support.public.by_hand.inputs import Maker, ids, rows
from torch import Tensor, nn
from torch.nn import functional as f
from torch.nn.utils.parametrizations import weight_norm


class TemporalConvolutions(nn.Module):
    """Dilated causal convolutions with weight norm, dropout and residual connections (TCN)."""

    def __init__(self) -> None:
        super().__init__()
        self.dilations = (1, 2, 4)
        self.convs = nn.ModuleList(
            [weight_norm(nn.Conv1d(8, 8, 3, padding=2 * d, dilation=d)) for d in self.dilations]
        )
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        for conv, dilation in zip(self.convs, self.dilations, strict=True):
            past = f.relu(conv(x)[:, :, : -2 * dilation])
            x = f.dropout(past, 0.2, self.training) + x
        return f.smooth_l1_loss(self.head(x[:, :, -1]), wanted)


class WaveNet(nn.Module):
    """The next of 256 levels of a sound, by a gated causal convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 8)
        self.gated, self.head = nn.Conv1d(8, 16, 2, dilation=2), nn.Conv1d(8, 256, 1)

    def forward(self, sound: Tensor) -> Tensor:
        past = f.pad(self.table(sound).transpose(1, 2), (2, 0))
        value, gate = self.gated(past).chunk(2, 1)
        logits = self.head(torch.tanh(value) * torch.sigmoid(gate))
        return f.cross_entropy(logits[:, :, :-1], sound[:, 1:])


class NeuralEquation(nn.Module):
    """A neural ordinary differential equation, by five steps of the Runge-Kutta method."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        h = 0.1
        for _ in range(5):
            first = self.slope(x)
            second = self.slope(x + h / 2 * first)
            third = self.slope(x + h / 2 * second)
            fourth = self.slope(x + h * third)
            x = x + h / 6 * (first + 2 * second + 2 * third + fourth)
        return f.mse_loss(x, wanted)


SERIES: dict[str, Maker] = {
    "tcn": lambda: (TemporalConvolutions(), (rows(8, 16), rows(1))),
    "wavenet": lambda: (WaveNet(), (ids(256, 20),)),
    "neural-ode": lambda: (NeuralEquation(), (rows(4), rows(4))),
}
