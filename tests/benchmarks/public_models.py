"""Print the table of public models in the docs: what of each is captured.

PYTHONPATH=.:tests python tests/benchmarks/public_models.py [transformers|torchvision|timm|others]
"""

from __future__ import annotations

import sys
import warnings

import torch
from support.public.compared import Loss, compared, row
from support.public.families import TIMM
from support.public.images import TORCHVISION
from support.public.language import LANGUAGE
from support.public.others import OTHERS
from support.public.vision import VISION

from pcg.errors import InputError


def transformers() -> None:
    """A line for each model and way to compute attention."""
    for attention in ("sdpa", "eager"):
        for name, make in {**LANGUAGE, **VISION}.items():
            torch.manual_seed(0)
            model, given = make(attention)
            try:
                line = row(
                    f"{name}, {attention}", *compared(Loss(model, given), (*given.values(),))
                )
            except InputError as error:
                line = f"| {name}, {attention} | refused | {error.args[-1]} | | |"
            print(line, flush=True)


def main() -> None:
    """The models of one package, or all."""
    warnings.simplefilter("ignore")
    wanted = sys.argv[1] if len(sys.argv) > 1 else "all"
    if wanted in ("transformers", "all"):
        transformers()
    for kind, models in (("torchvision", TORCHVISION), ("timm", TIMM), ("others", OTHERS)):
        for name, of in models.items() if wanted in (kind, "all") else ():
            torch.manual_seed(0)
            print(row(name, *compared(*of())), flush=True)


if __name__ == "__main__":
    main()
