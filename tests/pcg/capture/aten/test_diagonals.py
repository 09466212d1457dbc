"""Diagonals that are written: equal to torch in values and gradients, with an equation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.graphs.torch_functions import default_dtype
from torch import Tensor, nn

from pcg.capture import capture
from runtime.train.eager import compare_module

NEAR = 1e-12
Function = Callable[[Tensor, Tensor], Tensor]


def in_place(x: Tensor, w: Tensor) -> Tensor:
    """As the loss of Barlow Twins is written."""
    square = x.T @ w
    return square.diagonal().add_(-1).square().sum() + square.sum()


CASES: dict[str, Function] = {
    "in place": in_place,
    "above": lambda x, w: torch.diagonal_scatter(w, x[0, :2], offset=1),
    "below": lambda x, w: torch.diagonal_scatter(w, x[0, :3], offset=-1),
    "of all": lambda x, w: torch.diagonal_scatter(w[None] + x[:, :, None], x[:, :3], 0, 1, 2),
    "first dimensions": lambda x, w: torch.diagonal_scatter(
        (w[:, :, None] * x[0]), x[:, :3], 0, 0, 1
    ),
}


class Weighted(nn.Module):
    """A function of the input and a weight of 4 rows and 3 columns, summed with weights."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        made = self.function(x, self.weight)
        return (made * torch.arange(1, made.numel() + 1).view(made.shape).cos()).sum()


@pytest.mark.parametrize("name", CASES)
def test_written_diagonals(name: str) -> None:
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        module, inputs = Weighted(CASES[name]), (torch.randn(4, 4),)
        captured = capture(module, inputs)
        comparison = compare_module(module, inputs, captured, "model")
    assert captured.opaque == ()
    assert comparison.error is not None, comparison.reason
    assert comparison.error < NEAR
