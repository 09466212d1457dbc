"""A model of tokens whose loss leaves out some labels, like those of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pcg.capture import capture
from pcg.graph.graph import Graph

CLASSES = 12
LENGTH = 4
IGNORED = -100


class NextTokens(nn.Module):
    """A model whose loss is the mean over the labels that count. Labels are the next tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CLASSES, 6)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, CLASSES, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(torch.relu(self.inner(self.table(ids))))
        following = nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:]
        return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


class Texts:
    """Samples with different numbers of labels that count. Some samples have none."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, number: int) -> dict[str, Any]:
        ids = torch.randint(CLASSES, (LENGTH,), generator=torch.Generator().manual_seed(number))
        return {"ids": ids, "labels": ids.where(ids >= number % CLASSES, IGNORED)}


def texts() -> Texts:
    return Texts()


def with_ignored_labels(batch: int) -> Graph:
    ids = torch.zeros(batch, LENGTH, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    labels[:, 0] = CLASSES - 1
    return capture(NextTokens(), (ids, labels)).graph
