"""CANDLE-Uno: predicts the response of a tumour to a pair of drugs (Unity, table 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pcg.models.dense import dense


@dataclass(frozen=True)
class CandleSize:
    """Widths of inputs. ``plain`` inputs (doses) are used directly. Others (genes, descriptors and
    fingerprints of both drugs) have a tower of ``depth`` layers each."""

    plain: tuple[int, ...]
    towers: tuple[int, ...]
    width: int
    depth: int
    top: int
    """The number of layers between the concatenation and the last layer."""


SIZES = {
    "candle-uno": CandleSize((1, 1), (942, 5270, 2048, 5270, 2048), 4192, 8, 4),
    "candle-uno-tiny": CandleSize((1, 1), (24, 48, 32, 48, 32), 48, 2, 2),
}


class CandleUno(nn.Module):
    """CANDLE-Uno with its loss: from features [batch, width] and responses [batch, 1] to the mean
    squared error. Layers have no bias."""

    def __init__(self, size: CandleSize) -> None:
        super().__init__()
        inner = (size.width,) * size.depth
        self.towers = nn.ModuleList(
            nn.Sequential(*dense((width, *inner)), nn.ReLU()) for width in size.towers
        )
        joined = sum(size.plain) + len(size.towers) * size.width
        self.top = nn.Sequential(*dense((joined, *(size.width,) * size.top, 1)))

    def forward(self, plain: list[Tensor], features: list[Tensor], target: Tensor) -> Tensor:
        seen = [tower(x) for tower, x in zip(self.towers, features, strict=True)]
        return nn.functional.mse_loss(self.top(torch.cat([*plain, *seen], 1)), target)


def make(name: str, batch: int) -> tuple[nn.Module, tuple[object, ...]]:
    """Return the module of a size, and example inputs."""
    size = SIZES[name]
    plain = [torch.empty(batch, width) for width in size.plain]
    features = [torch.empty(batch, width) for width in size.towers]
    return CandleUno(size), (plain, features, torch.empty(batch, 1))
