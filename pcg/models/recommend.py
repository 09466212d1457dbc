"""Recommendation models: DLRM (Naumov et al., 2019) and XDL (Jiang et al., 2019).

Each sample has one id for each table. The sum over a bag of one id is the row itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pcg.models.dense import dense


@dataclass(frozen=True)
class DlrmSize:
    """The size of a DLRM. Layers have no bias. ``top`` follows the concatenation."""

    tables: int
    rows: int
    features: int
    """The number of columns of a table."""
    bottom: tuple[int, ...]
    top: tuple[int, ...]


@dataclass(frozen=True)
class XdlSize:
    """The size of an XDL. Layers have no bias. ``top`` follows the concatenation and ends with the
    classes."""

    tables: int
    rows: int
    features: int
    top: tuple[int, ...]


DLRM_SIZES = {
    "dlrm": DlrmSize(8, 1_000_000, 256, (1024,) * 9, (*(1024,) * 4, 1)),
    "dlrm-tiny": DlrmSize(4, 480, 16, (48,) * 3, (48, 48, 1)),
}
XDL_SIZES = {
    "xdl": XdlSize(4, 1_000_000, 64, (256, 256, 2)),
    "xdl-tiny": XdlSize(4, 480, 12, (48, 48, 2)),
}


def _tables(count: int, rows: int, features: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Embedding(rows, features) for _ in range(count))


def _looked_up(tables: nn.ModuleList, ids: list[Tensor]) -> list[Tensor]:
    return [table(column) for table, column in zip(tables, ids, strict=True)]


class Dlrm(nn.Module):
    """DLRM with its loss: from numbers [batch, width], an id [batch] for each table and click rates
    [batch, 1] to the mean squared error. Numbers and rows are combined by concatenation."""

    def __init__(self, size: DlrmSize) -> None:
        super().__init__()
        self.tables = _tables(size.tables, size.rows, size.features)
        self.bottom = nn.Sequential(*dense(size.bottom), nn.ReLU())
        joined = size.tables * size.features + size.bottom[-1]
        self.top = nn.Sequential(*dense((joined, *size.top)), nn.Sigmoid())

    def forward(self, numbers: Tensor, ids: list[Tensor], target: Tensor) -> Tensor:
        rows = _looked_up(self.tables, ids)
        rate = self.top(torch.cat([*rows, self.bottom(numbers)], 1))
        return nn.functional.mse_loss(rate, target)


class Xdl(nn.Module):
    """XDL with its loss: from an id [batch] for each table and labels [batch] to the mean
    cross-entropy."""

    def __init__(self, size: XdlSize) -> None:
        super().__init__()
        self.tables = _tables(size.tables, size.rows, size.features)
        self.top = nn.Sequential(*dense((size.tables * size.features, *size.top)))

    def forward(self, ids: list[Tensor], labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            self.top(torch.cat(_looked_up(self.tables, ids), 1)), labels
        )


def _ids(batch: int, count: int) -> list[Tensor]:
    return [torch.empty(batch, dtype=torch.int64) for _ in range(count)]


def make(name: str, batch: int) -> tuple[nn.Module, tuple[object, ...]]:
    """Return the module of a size, and example inputs."""
    if name in XDL_SIZES:
        xdl = XDL_SIZES[name]
        labels = torch.empty(batch, dtype=torch.int64)
        return Xdl(xdl), (_ids(batch, xdl.tables), labels)
    dlrm = DLRM_SIZES[name]
    numbers = torch.empty(batch, dlrm.bottom[0])
    return Dlrm(dlrm), (numbers, _ids(batch, dlrm.tables), torch.empty(batch, 1))
