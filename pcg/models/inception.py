"""Inception-v3 without its auxiliary head (Szegedy et al., CVPR 2016).

There is no dropout before the last layer, so that losses of different runs can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d


@dataclass(frozen=True)
class InceptionSize:
    """The size of a model. All channels are those of the paper, divided by ``divisor``."""

    divisor: int
    classes: int
    image: int


SIZES = {
    "inception-v3": InceptionSize(1, 1000, 299),
    "inception-v3-tiny": InceptionSize(8, 24, 75),
}

PerDimension = int | tuple[int, int]
"""One number for both rows and columns, or one for each."""
ConvolutionSpec = tuple[int, PerDimension, int, PerDimension]
"""A convolution: channels out, kernel, stride, padding."""


class Convolution(nn.Module):
    """A convolution, a batch norm and a ReLU."""

    def __init__(self, fan_in: int, step: ConvolutionSpec) -> None:
        super().__init__()
        fan_out, kernel, stride, padding = step
        self.convolution = nn.Conv2d(fan_in, fan_out, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(fan_out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.convolution(x)))


def chain(fan_in: int, *steps: ConvolutionSpec) -> nn.Sequential:
    """Return a sequence of convolutions."""
    widths = (fan_in, *(step[0] for step in steps))
    return nn.Sequential(*(Convolution(w, step) for w, step in zip(widths, steps, strict=False)))


class ConvolutionFork(nn.Module):
    """A 1x3 and a 3x1 convolution of the same input, concatenated."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.row = Convolution(fan_in, (fan_out, (1, 3), 1, (0, 1)))
        self.column = Convolution(fan_in, (fan_out, (3, 1), 1, (1, 0)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.row(x), self.column(x)), 1)


class AveragePool(nn.Module):
    """The mean of 3x3 windows. Zeros around the image count."""

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(x, 3, 1, 1)


class MaxPool(nn.Module):
    """The maximum of 3x3 windows, with stride 2."""

    def forward(self, x: Tensor) -> Tensor:
        return max_pool2d(x, 3, 2)


class Mixed(nn.Module):
    """Branches of the same input, concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Inception(nn.Module):
    """Inception-v3 with its loss: from images [batch, 3, image, image] and labels [batch] to the
    mean cross-entropy."""

    def __init__(self, size: InceptionSize) -> None:
        super().__init__()
        d = size.divisor
        self.stem = nn.Sequential(
            *chain(3, (32 // d, 3, 2, 0), (32 // d, 3, 1, 0), (64 // d, 3, 1, 1)),
            MaxPool(),
            *chain(64 // d, (80 // d, 1, 1, 0), (192 // d, 3, 1, 0)),
            MaxPool(),
        )
        self.mixed = nn.Sequential(
            *(_fine(w // d, pool // d, d) for w, pool in ((192, 32), (256, 64), (288, 64))),
            _fine_to_middle(288 // d, d),
            *(_middle(768 // d, inner // d, d) for inner in (128, 160, 160, 192)),
            _middle_to_coarse(768 // d, d),
            *(_coarse(w // d, d) for w in (1280, 2048)),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(2048 // d, size.classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.pool(self.mixed(self.stem(images))).flatten(1)
        return nn.functional.cross_entropy(self.classify(x), labels)


def _fine(fan_in: int, pooled: int, d: int) -> Mixed:
    """Return a block for 35x35 images."""
    return Mixed(
        chain(fan_in, (64 // d, 1, 1, 0)),
        chain(fan_in, (48 // d, 1, 1, 0), (64 // d, 5, 1, 2)),
        chain(fan_in, (64 // d, 1, 1, 0), (96 // d, 3, 1, 1), (96 // d, 3, 1, 1)),
        nn.Sequential(AveragePool(), *chain(fan_in, (pooled, 1, 1, 0))),
    )


def _fine_to_middle(fan_in: int, d: int) -> Mixed:
    return Mixed(
        chain(fan_in, (384 // d, 3, 2, 0)),
        chain(fan_in, (64 // d, 1, 1, 0), (96 // d, 3, 1, 1), (96 // d, 3, 2, 0)),
        MaxPool(),
    )


def _middle(fan_in: int, inner: int, d: int) -> Mixed:
    """Return a block for 17x17 images, with 7x7 windows as 1x7 and 7x1."""
    out = 192 // d
    row: tuple[PerDimension, int, PerDimension] = ((1, 7), 1, (0, 3))
    column: tuple[PerDimension, int, PerDimension] = ((7, 1), 1, (3, 0))
    first: ConvolutionSpec = (inner, 1, 1, 0)
    return Mixed(
        chain(fan_in, (out, 1, 1, 0)),
        chain(fan_in, first, (inner, *row), (out, *column)),
        chain(fan_in, first, (inner, *column), (inner, *row), (inner, *column), (out, *row)),
        nn.Sequential(AveragePool(), *chain(fan_in, (out, 1, 1, 0))),
    )


def _middle_to_coarse(fan_in: int, d: int) -> Mixed:
    inner = 192 // d
    return Mixed(
        chain(fan_in, (inner, 1, 1, 0), (320 // d, 3, 2, 0)),
        chain(
            fan_in,
            *((inner, 1, 1, 0), (inner, (1, 7), 1, (0, 3)), (inner, (7, 1), 1, (3, 0))),
            (inner, 3, 2, 0),
        ),
        MaxPool(),
    )


def _coarse(fan_in: int, d: int) -> Mixed:
    """Return a block for 8x8 images."""
    return Mixed(
        chain(fan_in, (320 // d, 1, 1, 0)),
        nn.Sequential(*chain(fan_in, (384 // d, 1, 1, 0)), ConvolutionFork(384 // d, 384 // d)),
        nn.Sequential(
            *chain(fan_in, (448 // d, 1, 1, 0), (384 // d, 3, 1, 1)),
            ConvolutionFork(384 // d, 384 // d),
        ),
        nn.Sequential(AveragePool(), *chain(fan_in, (192 // d, 1, 1, 0))),
    )


def make(name: str, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the module of a size, and example inputs."""
    size = SIZES[name]
    images = torch.empty(batch, 3, size.image, size.image)
    return Inception(size), (images, torch.empty(batch, dtype=torch.int64))
