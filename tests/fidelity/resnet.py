"""ResNet-50 v1.5 (He et al., 2016, with the stride in a block's second convolution)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDEN = 4
"""The number of channels of a block, relative to its inner convolution."""
STEM = 64


@dataclass(frozen=True)
class ResNet:
    """A residual network of bottleneck blocks. ``blocks``: the number of blocks in each of four
    groups."""

    blocks: tuple[int, int, int, int]
    classes: int
    size: int
    """Pixels of an image's height and width."""
    smoothing: float = 0.1
    """The smoothing of labels."""


class Normed(nn.Sequential):
    """A convolution and the norm of its batch."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """Three convolutions, added to the block's input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = WIDEN * width
        self.narrow, self.inner = Normed(inputs, width, 1), Normed(width, width, 3, stride)
        self.wide = Normed(width, outputs, 1)
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else Normed(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.inner(functional.relu(self.narrow(x))))
        return functional.relu(self.wide(inner) + self.short(x))


class Residual(nn.Module):
    """A map from images [batch, 3, size, size] and classes [batch] to the mean cross-entropy."""

    def __init__(self, of: ResNet) -> None:
        super().__init__()
        self.smoothing = of.smoothing
        self.stem = Normed(3, STEM, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        widths = [STEM << group for group, count in enumerate(of.blocks) for _ in range(count)]
        strides = [1] + [1 + (a != b) for a, b in pairwise(widths)]
        inputs = [STEM, *(WIDEN * width for width in widths)]
        blocks = zip(inputs, widths, strides, strict=False)
        self.blocks = nn.Sequential(*(Bottleneck(*sizes) for sizes in blocks))
        self.last = nn.Linear(inputs[-1], of.classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.blocks(self.pool(functional.relu(self.stem(images))))
        logits = self.last(x.mean((2, 3)))
        return functional.cross_entropy(logits, labels, label_smoothing=self.smoothing)


def inputs_of(of: ResNet, batch: int) -> tuple[Tensor, Tensor]:
    """Example inputs of a batch, on the device of new tensors."""
    return torch.zeros(batch, 3, of.size, of.size), torch.zeros(batch, dtype=torch.long)
