"""All public models by name, at tiny size: a module and its inputs.

Packages have models of the same name: ``torchvision/vit`` is not ``vit``, the one of the first
package with this name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from support.public.by_hand import BY_HAND
from support.public.calls import PublicModel
from support.public.others import OTHERS
from torch import Tensor, nn

if TYPE_CHECKING:
    from support.public.language import Maker

Plain = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


def _of_transformers() -> Mapping[str, Mapping[str, Maker]]:
    """The models that need ``transformers``, by package. Empty without it."""
    if find_spec("transformers") is None:
        return {}
    from support.public.further import FURTHER
    from support.public.language import IGNORING, LANGUAGE, PADDED
    from support.public.transformers5.recent import RECENT
    from support.public.vision import VISION

    return {
        "transformers": {**LANGUAGE, **VISION, **FURTHER},
        "transformers-5": RECENT,
        "padded": PADDED,
        "ignoring": IGNORING,
    }


OF_TRANSFORMERS = _of_transformers()

IMAGES = {"torchvision": "images", "timm": "families"}
"""The packages with models of images, and the modules here that make these models small."""
MODELS: Mapping[str, Mapping[str, Maker | Plain]] = {
    **OF_TRANSFORMERS,
    "others": OTHERS,
    **{
        package: getattr(import_module(f"support.public.{module}"), package.upper())
        for package, module in IMAGES.items()
        if find_spec(package) is not None
    },
    "by-hand": BY_HAND,
}
"""The models of the installed packages. Some take the way to compute attention. The others return
their loss and have one way only."""


def public(name: str, attention: str = "sdpa") -> PublicModel:
    """The model of a name, always with the same weights and inputs. Raises KeyError for other
    names."""
    torch.manual_seed(0)
    make: Any = maker_of(name)
    return PublicModel(*(make(attention) if has_attention(name) else make()))


def maker_of(name: str) -> Maker | Plain:
    """The function that makes the model. Raises KeyError if no package has a model of that name."""
    package, _, own = name.rpartition("/")
    matching = [MODELS[package]] if package else [m for m in MODELS.values() if own in m]
    if not matching:
        raise KeyError(name)
    return matching[0][own]


def has_attention(name: str) -> bool:
    """Whether the model can compute attention in several ways."""
    return any(maker_of(name) in own.values() for own in OF_TRANSFORMERS.values())


def named(given: Sequence[str]) -> Iterator[str]:
    """The models of the given names and packages. All models if nothing is given."""
    for name in given or MODELS:
        yield from (f"{name}/{own}" for own in MODELS[name]) if name in MODELS else (name,)
