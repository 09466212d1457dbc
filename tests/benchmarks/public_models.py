"""Print the table of public models in the docs: what of each is captured.

PYTHONPATH=.:tests python tests/benchmarks/public_models.py [PACKAGE ...]
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from support.public.compared import Loss, compared, row
from support.public.families import TIMM
from support.public.images import TORCHVISION
from support.public.language import LANGUAGE
from support.public.others import OTHERS
from support.public.vision import VISION
from torch import Tensor, nn

from pcg.errors import InputError

Maker = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


def of_transformers() -> Iterator[tuple[str, Maker]]:
    """Each model and way to compute attention."""

    def make(name: str, attention: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
        model, given = {**LANGUAGE, **VISION}[name](attention)
        return Loss(model, given), (*given.values(),)

    for attention in ("sdpa", "eager"):
        for name in (*LANGUAGE, *VISION):
            yield f"{name}, {attention}", partial(make, name, attention)


def line(name: str, make: Maker) -> str:
    """A row of the table."""
    torch.manual_seed(0)
    try:
        return row(name, *compared(*make()))
    except InputError as error:
        return f"| {name} | refused | {error.args[-1]} | | |"


def main() -> None:
    """The models of one package, or all."""
    warnings.simplefilter("ignore")
    kinds = {
        "transformers": dict(of_transformers()),
        "torchvision": TORCHVISION,
        "timm": TIMM,
        "others": OTHERS,
    }
    for kind in sys.argv[1:] or kinds:
        for name, make in kinds[kind].items():
            print(line(name, make), flush=True)


if __name__ == "__main__":
    main()
