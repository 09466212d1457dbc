"""Multi-layer perceptrons, trained with a squared error."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from pcg.capture import capture
from pcg.graph.graph import Graph


@dataclass(frozen=True)
class MlpSize:
    """The widths of the input and of each layer. ``prediction`` says whether the model also returns
    the output of the last layer."""

    widths: tuple[int, ...]
    prediction: bool = False


SIZES = {
    "mlp": MlpSize((8192,) * 17),
    "mlp-tiny": MlpSize((512,) * 5, prediction=True),
    "mlp-mnist": MlpSize((784, 512, 10)),
}


class Mlp(nn.Module):
    """Dense layers without bias, with a ReLU between them: [batch, widths[0]] to [batch,
    widths[-1]]. The loss is the mean squared error. Weights are ``w1``, ``w2``, ..., [in, out]."""

    def __init__(self, size: MlpSize) -> None:
        super().__init__()
        self.prediction = size.prediction
        for i, (fan_in, fan_out) in enumerate(pairwise(size.widths)):
            weight = nn.Parameter(torch.randn(fan_in, fan_out) / fan_in**0.5)
            self.register_parameter(f"w{i + 1}", weight)

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        for i, weight in enumerate(self.parameters()):
            x = (torch.relu(x) if i else x) @ weight
        loss = nn.functional.mse_loss(x, target)
        return (loss, x) if self.prediction else (loss,)


def make(name: str, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the module of a size, and example inputs."""
    return sized(SIZES[name], batch)


def sized(size: MlpSize, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a perceptron of a size, and example inputs."""
    return Mlp(size), (torch.empty(batch, size.widths[0]), torch.empty(batch, size.widths[-1]))


def mlp(batch: int, widths: tuple[int, ...], *, prediction: bool = False) -> Graph:
    """Return the graph of a perceptron."""
    with torch.device("meta"):
        module, inputs = sized(MlpSize(widths, prediction), batch)
    return capture(module, inputs, "mlp").graph
