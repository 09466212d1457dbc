"""Models of ``transformers`` 5 from the names of their classes, and their usual inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from support.public.language import BATCH, LENGTH, Made, ids, made
from torch import Tensor, nn

t: Any = import_module("transformers")
Inputs = Callable[[], dict[str, Tensor]]
KINDS = 3
"""The number of classes."""
FEW = 2
"""The batch of models whose inputs are long."""


def unchanged(module: nn.Module) -> None:
    """Leave a module as it is."""
    del module


@dataclass(frozen=True)
class Recipe:
    """A maker of a model. ``model``: the name of its class. ``inputs``: a function that returns the
    arguments of a call by name, labels among them. ``sizes``: the arguments of its configuration.
    ``change``: a function that changes the module in place."""

    model: str
    inputs: Inputs
    sizes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    change: Callable[[nn.Module], None] = unchanged

    @property
    def exists(self) -> bool:
        """Whether the installed version has the class."""
        return self.model in dir(t)

    def __call__(self, attention: str) -> Made:
        """The module and its arguments, with a way to compute attention."""
        kind = getattr(t, self.model)
        module, given = made(kind, kind.config_class(**self.sizes), attention, **self.inputs())
        self.change(module)
        return module, given


def words() -> dict[str, Tensor]:
    """Words, and words to predict."""
    return {"input_ids": ids(), "labels": ids()}


def texts() -> dict[str, Tensor]:
    """Texts, each of a class."""
    return {"input_ids": ids(), "labels": torch.randint(0, KINDS, (BATCH,))}


def tagged() -> dict[str, Tensor]:
    """Texts, each word of a class."""
    return {"input_ids": ids(), "labels": torch.randint(0, KINDS, (BATCH, LENGTH))}


def images(size: int = 32, batch: int = BATCH) -> Tensor:
    """Square images of the given size in pixels."""
    return torch.randn(batch, 3, size, size)
