"""ResNeXt-50 (32x4d), trained to classify images (Xie et al., CVPR 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

EXPANSION = 4
"""The ratio of a block's output channels to the stem's channels, in the first stage."""


@dataclass(frozen=True)
class ResNextSize:
    """The number of blocks of each stage, and channels: ``cardinality`` groups of ``group_width``
    channels in the first stage, and twice as many in each later one."""

    depths: tuple[int, ...]
    stem: int
    cardinality: int
    group_width: int
    classes: int
    image: int


SIZES = {
    "resnext50": ResNextSize((3, 4, 6, 3), 64, 32, 4, 1000, 224),
    "resnext50-tiny": ResNextSize((1, 1, 1, 1), 16, 8, 2, 24, 64),
}


class ResidualBlock(nn.Module):
    """1x1, grouped 3x3 and 1x1 convolutions with a shortcut. The shortcut is a 1x1 convolution if
    the shape changes."""

    def __init__(self, fan_in: int, inner: int, fan_out: int, groups: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(fan_in, inner, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(inner)
        self.grouped = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False)
        self.grouped_norm = nn.BatchNorm2d(inner)
        self.expand = nn.Conv2d(inner, fan_out, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(fan_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or fan_in != fan_out:
            convolution = nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.reduce_norm(self.reduce(x)))
        inner = torch.relu(self.grouped_norm(self.grouped(inner)))
        return torch.relu(self.expand_norm(self.expand(inner)) + self.shortcut(x))


class ResNext(nn.Module):
    """ResNeXt with its loss: from images [batch, 3, image, image] and labels [batch] to the mean
    cross-entropy."""

    def __init__(self, size: ResNextSize) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, size.stem, 7, 2, 3, bias=False)
        self.stem_norm = nn.BatchNorm2d(size.stem)
        self.stem_pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[ResidualBlock] = []
        channels = size.stem
        for stage, depth in enumerate(size.depths):
            inner = size.cardinality * size.group_width * 2**stage
            fan_out = EXPANSION * size.stem * 2**stage
            for i in range(depth):
                stride = 2 if stage and not i else 1
                blocks.append(ResidualBlock(channels, inner, fan_out, size.cardinality, stride))
                channels = fan_out
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(channels, size.classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.stem_pool(torch.relu(self.stem_norm(self.stem(images))))
        x = self.pool(self.blocks(x)).flatten(1)
        return nn.functional.cross_entropy(self.classify(x), labels)


def make(name: str, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the module of a size, and example inputs."""
    size = SIZES[name]
    images = torch.empty(batch, 3, size.image, size.image)
    return ResNext(size), (images, torch.empty(batch, dtype=torch.int64))
