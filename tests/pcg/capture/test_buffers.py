"""Buffers of unusual kinds."""

from __future__ import annotations

import torch
from support.public.compared import compared
from torch import Tensor, nn

from pcg.capture import capture


class Scaled(nn.Module):
    """A scale that is a buffer although it was made as a parameter, as in Falcon Mamba."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        scale = nn.Parameter(torch.arange(4.0), requires_grad=False)
        self.register_buffer("scale", scale, persistent=False)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.norm(self.head(x)) * self.scale).square().mean()


def test_a_buffer_that_was_made_as_a_parameter() -> None:
    module = Scaled()
    before = module.scale
    capture(module, (torch.randn(3, 4),))
    assert module.scale is before
    captured, _ = compared(module, (torch.randn(3, 4),))
    assert set(captured.buffers.values()) >= {"scale"}
    assert [weight.parameter for weight in captured.weights] == [
        name for name, _ in module.named_parameters()
    ]
