"""Random inputs of the models written by hand, for a batch of 8 samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]
"""A module that returns its loss, and its inputs."""
Maker = Callable[[], Made]

SAMPLES, WORDS, LENGTH = 8, 50, 10
FEATURES, CLASSES = 20, 5


def rows(*shape: int) -> Tensor:
    """Normal numbers for each sample."""
    return torch.randn(SAMPLES, *shape)


def images(size: int = 16) -> Tensor:
    """Images of three colours, with numbers from 0 to 1."""
    return torch.rand(SAMPLES, 3, size, size)


def ids(below: int, *shape: int) -> Tensor:
    """Integers for each sample: classes, users, or places."""
    return torch.randint(0, below, (SAMPLES, *shape))


def words(length: int = LENGTH) -> Tensor:
    """Texts without padding, which is the word 0."""
    return torch.randint(1, WORDS, (SAMPLES, length))


def padded() -> tuple[Tensor, Tensor]:
    """Texts with padding at their ends, and their lengths."""
    lengths = torch.randint(1, LENGTH + 1, (SAMPLES,))
    return words().masked_fill(torch.arange(LENGTH) >= lengths[:, None], 0), lengths
