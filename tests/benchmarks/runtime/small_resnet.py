"""A residual network for small images, as in He et al. (CVPR 2016, section 4.2), of 8 layers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy, relu

WIDTHS, CLASSES = (16, 32, 64), 10
IMAGE = (3, 32, 32)


class Block(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(fan_out)
        self.second = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(fan_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or fan_in != fan_out:
            convolution = nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        made = relu(self.first_norm(self.first(x)))
        return relu(self.second_norm(self.second(made)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """A map from images and labels to a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(IMAGE[0], WIDTHS[0], 3, 1, 1, bias=False)
        self.stem_norm = nn.BatchNorm2d(WIDTHS[0])
        pairs = zip((WIDTHS[0], *WIDTHS), WIDTHS, strict=False)
        self.blocks = nn.Sequential(*(Block(a, b, 1 if a == b else 2) for a, b in pairs))
        self.classify = nn.Linear(WIDTHS[-1], CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.blocks(relu(self.stem_norm(self.stem(x))))
        x = adaptive_avg_pool2d(x, 1).flatten(1)
        return cross_entropy(self.classify(x), labels)
