"""Models as users have them: a module and the arguments of a call that returns its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class PublicModel:
    """A model with the arguments of a call that returns its loss: by name, or in order. ``batch``:
    the batch of all devices, if it is not the same for each."""

    module: nn.Module
    inputs: Mapping[str, Tensor] | tuple[Tensor, ...]
    batch: int | None = None


class Loss(nn.Module):
    """The loss of a model that takes its inputs by name."""

    def __init__(self, model: nn.Module, names: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True))).loss


def call_of_loss(public: PublicModel) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A module that returns the loss alone, and its inputs in order."""
    if isinstance(public.inputs, Mapping):
        return Loss(public.module, public.inputs), tuple(public.inputs.values())
    return public.module, public.inputs
