"""A model for `unity optimize my_model.py:make_model`."""

import torch
from torch import nn


class Classifier(nn.Module):
    """A classifier that returns its training loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(x), labels)


def make_model() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the module, and example inputs. Their first dimension is the batch of one device."""
    return Classifier(), (torch.zeros(64, 784), torch.zeros(64, dtype=torch.long))
