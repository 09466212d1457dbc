"""Losses and layers of images."""

from __future__ import annotations

import torch
from support.public.by_hand.inputs import Maker, ids, images, rows
from torch import Tensor, nn
from torch.nn import functional as f

KINDS = 4


class SpatialTransformer(nn.Module):
    """An image is moved by a learned affine map before it is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.head = nn.Linear(3 * 16 * 16, 6), nn.Linear(3 * 16 * 16, KINDS)

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        maps = self.map(image.flatten(1)).view(-1, 2, 3)
        grid = f.affine_grid(maps, list(image.size()), align_corners=False)
        moved = f.grid_sample(image, grid, align_corners=False)
        return f.cross_entropy(self.head(moved.flatten(1)), labels)


class Boxes(nn.Module):
    """Three boxes for each of 16 cells. Cells without an object have weight 0 in the loss of
    places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 18, 3, 4, 1)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        made = self.conv(image).view(image.size(0), 3, 6, 4, 4).permute(0, 1, 3, 4, 2)
        objects = target[..., 4]
        found = f.binary_cross_entropy_with_logits(made[..., 4], objects, reduction="none")
        places = (made[..., :4] - target[..., :4]).pow(2).sum(-1)
        return (found + objects * places).sum() / objects.sum().clamp(min=1)


class Segmentation(nn.Module):
    """A class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, KINDS, 3, padding=1)


class Dice(Segmentation):
    """The loss of overlaps of regions."""

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        shares = self.conv(image).softmax(1)
        wanted = f.one_hot(labels, KINDS).permute(0, 3, 1, 2).float()
        overlap = (shares * wanted).sum((2, 3))
        total = shares.sum((2, 3)) + wanted.sum((2, 3))
        return 1 - ((2 * overlap + 1) / (total + 1)).mean()


class Focal(Segmentation):
    """Cross entropy that weighs hard pixels more."""

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        losses = f.cross_entropy(self.conv(image), labels, reduction="none")
        return ((1 - torch.exp(-losses)) ** 2 * losses).mean()


class Capsules(nn.Module):
    """Sixteen capsules send to four by three rounds of agreement."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(1, 16, KINDS, 8, 4))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        votes = (x.view(-1, 16, 1, 1, 4) @ self.weight.transpose(3, 4)).squeeze(3)
        logits = torch.zeros(votes.shape[:3])
        out = squashed(votes, logits)
        for _ in range(2):
            logits = logits + (votes * out.unsqueeze(1)).sum(-1)
            out = squashed(votes, logits)
        length, right = out.norm(dim=-1), torch.eye(KINDS)[labels]
        wrong = 0.5 * (1 - right) * f.relu(length - 0.1) ** 2
        return (right * f.relu(0.9 - length) ** 2 + wrong).sum(1).mean()


def squashed(votes: Tensor, logits: Tensor) -> Tensor:
    """The capsules that the votes make, shorter than 1."""
    mixed = (f.softmax(logits, 2).unsqueeze(-1) * votes).sum(1)
    square = (mixed**2).sum(-1, keepdim=True)
    return square / (1 + square) * mixed / (square + 1e-8).sqrt()


def boxes() -> Tensor:
    """An object or none for each box of each cell."""
    return ids(2, 3, 4, 4, 6).float()


VISION_BY_HAND: dict[str, Maker] = {
    "spatial-transformer": lambda: (SpatialTransformer(), (images(), ids(KINDS))),
    "yolo": lambda: (Boxes(), (images(), boxes())),
    "dice": lambda: (Dice(), (images(), ids(KINDS, 16, 16))),
    "focal": lambda: (Focal(), (images(), ids(KINDS, 16, 16))),
    "capsules": lambda: (Capsules(), (rows(64), ids(KINDS))),
}
