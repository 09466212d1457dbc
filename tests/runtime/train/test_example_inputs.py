"""A module that refuses random inputs is compared on its examples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pcg.capture import capture
from pcg.errors import InputError
from runtime.train.eager import compare_module


class Shares(nn.Module):
    """Its labels have to be between 0 and 1, or torch raises an error."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.factor = 1.0

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        return f.binary_cross_entropy(self.layer(x).sigmoid()[:, 0], shares) * self.factor


class Logarithms(Shares):
    """A number below 0 has no logarithm."""

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        return (self.layer(x)[:, 0] * shares.log()).square().mean() * self.factor


INPUTS = (torch.randn(6, 4), torch.rand(6) * 0.9 + 0.05)


@pytest.mark.parametrize("kind", [Shares, Logarithms])
def test_module_that_refuses_random_inputs_is_compared_on_its_examples(kind: type[Shares]) -> None:
    module = kind()
    agreement = compare_module(module, INPUTS, capture(module, INPUTS), "model")
    assert agreement.error is not None, agreement.reason
    assert agreement.error < 1e-9
    assert "on its example inputs" in str(agreement)


@pytest.mark.parametrize("kind", [Shares, Logarithms])
def test_another_graph_is_refused_on_examples(kind: type[Shares]) -> None:
    module = kind()
    captured = capture(module, INPUTS)
    module.factor = 1.01
    with pytest.raises(InputError, match=r"output 0 differs by .*, on example inputs"):
        compare_module(module, INPUTS, captured, "model")


@pytest.mark.parametrize("kind", [Shares, Logarithms])
def test_examples_without_elements_are_not_compared(kind: type[Shares]) -> None:
    module = kind()
    captured = capture(module, INPUTS)
    without = tuple(tensor.to("meta") for tensor in INPUTS)
    agreement = compare_module(module, without, captured, "model")
    assert agreement.error is None
    assert "random inputs" in agreement.reason
