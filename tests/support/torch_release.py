"""What the oldest release of torch lacks that tests ask for. docs/limits.md says it to users."""

from __future__ import annotations

import torch
from torch import Tensor

IS_2_11 = torch.__version__.startswith("2.11.")
"""Whether torch has no derivative of ``aminmax``, and cannot follow a cross entropy of elements
that a mask of data selects."""


def extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest of each row, by ``aminmax`` where it has a derivative."""
    if IS_2_11:
        return x.amin(1), x.amax(1)
    least, greatest = torch.aminmax(x, dim=1)
    return least, greatest
