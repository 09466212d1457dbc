"""Networks of rows of features."""

from __future__ import annotations

import torch
from support.public.by_hand.inputs import CLASSES, FEATURES, Maker, ids, rows
from torch import Tensor, nn
from torch.nn import functional as f


class Mixup(nn.Module):
    """Each sample is mixed with another of the batch, by a random permutation."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        order = torch.randperm(x.size(0))
        logits = self.network(0.7 * x + 0.3 * x[order])
        other = f.cross_entropy(logits, labels[order])
        return 0.7 * f.cross_entropy(logits, labels) + 0.3 * other


class Highway(nn.Module):
    """Gates between a layer and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(FEATURES, FEATURES) for _ in range(2)])
        self.gates = nn.ModuleList([nn.Linear(FEATURES, FEATURES) for _ in range(2)])
        self.head = nn.Linear(FEATURES, 1)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        for layer, gate in zip(self.layers, self.gates, strict=True):
            share = torch.sigmoid(gate(x))
            x = share * f.relu(layer(x)) + (1 - share) * x
        return f.huber_loss(self.head(x)[:, 0], wanted)


class SoftExperts(nn.Module):
    """A mean of four experts by the weights of a router."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(FEATURES, 4), nn.Linear(8, CLASSES)
        self.experts = nn.ModuleList([nn.Linear(FEATURES, 8) for _ in range(4)])

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        weights = f.softmax(self.router(x), -1).unsqueeze(-1)
        made = torch.stack([expert(x) for expert in self.experts], 1)
        return f.cross_entropy(self.head((made * weights).sum(1)), labels)


CLASSIFIERS: dict[str, Maker] = {
    "mixup": lambda: (Mixup(), (rows(FEATURES), ids(CLASSES))),
    "highway": lambda: (Highway(), (rows(FEATURES), rows())),
    "soft-experts": lambda: (SoftExperts(), (rows(FEATURES), ids(CLASSES))),
}
