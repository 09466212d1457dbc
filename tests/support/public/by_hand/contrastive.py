"""Losses of pairs and triples of samples."""

from __future__ import annotations

import torch
from support.public.by_hand.inputs import CLASSES, FEATURES, Maker, ids, images, rows
from torch import Tensor, nn
from torch.nn import functional as f


class Triplet(nn.Module):
    """An image is nearer to one of its class than to one of another."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 16),
        )
        self.loss = nn.TripletMarginLoss(margin=1.0)

    def forward(self, anchor: Tensor, same: Tensor, other: Tensor) -> Tensor:
        return self.loss(*(f.normalize(self.network(x)) for x in (anchor, same, other)))


class Siamese(nn.Module):
    """One network for both of a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(FEATURES, 16), nn.PReLU(), nn.Linear(16, 8))


class Contrastive(Siamese):
    """The loss of distances: small for the same, above 1 for others."""

    def forward(self, first: Tensor, second: Tensor, differs: Tensor) -> Tensor:
        distance = f.pairwise_distance(self.network(first), self.network(second))
        near = (1 - differs) * distance.pow(2)
        return (near + differs * torch.clamp(1.0 - distance, min=0).pow(2)).mean()


class Cosine(Siamese):
    """The loss of angles, and one of ranks."""

    def forward(self, first: Tensor, second: Tensor, same: Tensor) -> Tensor:
        signs, a, b = same * 2 - 1, self.network(first), self.network(second)
        angles = f.cosine_embedding_loss(a, b, signs, margin=0.2)
        return angles + f.margin_ranking_loss(a[:, 0], b[:, 0], signs)


class SimClr(nn.Module):
    """Two views of a sample find each other among all views."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        views, count = f.normalize(self.network(torch.cat([first, second])), dim=1), len(first)
        itself = torch.eye(2 * count, dtype=torch.bool, device=views.device)
        likeness = (views @ views.T / 0.1).masked_fill(itself, float("-inf"))
        return f.cross_entropy(
            likeness, torch.cat([torch.arange(count) + count, torch.arange(count)])
        )


class SupCon(Siamese):
    """Samples of a class find each other: supervised contrastive learning."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        rows = f.normalize(self.network(x))
        logits = rows @ rows.T / 0.1
        logits = logits - logits.max(1, keepdim=True)[0].detach()
        others = 1 - torch.eye(len(labels))
        same = (labels[:, None] == labels[None]).float() * others
        total = (torch.exp(logits) * others).sum(1, keepdim=True)
        logarithms = logits - torch.log(total)
        return -((same * logarithms).sum(1) / same.sum(1).clamp(min=1)).mean()


class BarlowTwins(nn.Module):
    """Features of two views correlate with themselves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.norm = nn.Linear(FEATURES, 8), nn.BatchNorm1d(8, affine=False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        correlation = self.norm(self.network(first)).T @ self.norm(self.network(second))
        correlation.div_(first.size(0))
        count, _ = correlation.shape
        same = torch.diagonal(correlation).add_(-1).pow_(2).sum()
        pairs = correlation.flatten()[:-1].view(count - 1, count + 1)[:, 1:]
        return same + 0.005 * pairs.flatten().pow_(2).sum()


class ArcFace(nn.Module):
    """A class by angles, with a margin at the right one."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(FEATURES, 8)
        self.centres = nn.Parameter(torch.randn(CLASSES, 8))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        cosines = f.linear(f.normalize(self.network(x)), f.normalize(self.centres))
        cosines = cosines.clamp(-1 + 1e-7, 1 - 1e-7)
        right = torch.zeros_like(cosines)
        right.scatter_(1, labels.view(-1, 1), 1.0)
        wider = torch.cos(torch.acos(cosines) + 0.5)
        return f.cross_entropy(64 * torch.where(right.bool(), wider, cosines), labels)


CONTRASTIVE: dict[str, Maker] = {
    "triplet": lambda: (Triplet(), (images(), images(), images())),
    "contrastive": lambda: (Contrastive(), (rows(FEATURES), rows(FEATURES), ids(2).float())),
    "cosine": lambda: (Cosine(), (rows(FEATURES), rows(FEATURES), ids(2).float())),
    "simclr": lambda: (SimClr(), (rows(FEATURES), rows(FEATURES))),
    "supcon": lambda: (SupCon(), (rows(FEATURES), ids(CLASSES))),
    "barlow-twins": lambda: (BarlowTwins(), (rows(FEATURES), rows(FEATURES))),
    "arcface": lambda: (ArcFace(), (rows(FEATURES), ids(CLASSES))),
}
