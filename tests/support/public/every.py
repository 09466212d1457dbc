"""All public models by name, at tiny size, as a user has one at hand: a module and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from support.public.compared import Loss
from support.public.language import LANGUAGE
from support.public.others import OTHERS
from support.public.vision import VISION
from torch import Tensor, nn

Plain = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]

TRANSFORMERS = {**LANGUAGE, **VISION}
IMAGES = {"torchvision": "images", "timm": "families"}
"""Packages with models of images, and the modules here that make them small."""
PLAIN: Mapping[str, Mapping[str, Plain]] = {
    "others": OTHERS,
    **{
        package: getattr(import_module(f"support.public.{module}"), package.upper())
        for package, module in IMAGES.items()
        if find_spec(package) is not None
    },
}
"""By package, the models that have but one way to compute attention, and return their loss."""
PACKAGES = {"transformers": tuple(TRANSFORMERS), **{name: tuple(PLAIN[name]) for name in PLAIN}}


@dataclass(frozen=True)
class Public:
    """A model with the arguments of a call that returns its loss: by name, or in order."""

    module: nn.Module
    inputs: Mapping[str, Tensor] | tuple[Tensor, ...]


def public(name: str, attention: str = "sdpa") -> Public:
    """The model of a name, always with the same weights and inputs. Raises KeyError for others."""
    torch.manual_seed(0)
    for models in PLAIN.values():
        if name in models:
            return Public(*models[name]())
    return Public(*TRANSFORMERS[name](attention))


def named(given: Sequence[str]) -> Iterator[str]:
    """The models of names and packages; all of them where nothing is given."""
    for name in given or PACKAGES:
        yield from PACKAGES.get(name, (name,))


def call_of_loss(public: Public) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A module that returns the loss alone, and its inputs in order."""
    if isinstance(public.inputs, Mapping):
        return Loss(public.module, public.inputs), tuple(public.inputs.values())
    return public.module, public.inputs
