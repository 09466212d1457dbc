"""Print the table of public models in the docs: what of each is captured.

PYTHONPATH=.:tests python tests/benchmarks/public_models.py
"""

from __future__ import annotations

import warnings

import torch
from support.public.compared import Loss, compared, row
from support.public.language import LANGUAGE
from support.public.others import OTHERS
from support.public.vision import VISION

from pcg.errors import InputError


def main() -> None:
    """One line for each model and way to compute attention."""
    warnings.simplefilter("ignore")
    for attention in ("sdpa", "eager"):
        for name, make in {**LANGUAGE, **VISION}.items():
            torch.manual_seed(0)
            model, given = make(attention)
            try:
                line = row(
                    f"{name}, {attention}", *compared(Loss(model, given), (*given.values(),))
                )
            except InputError as error:
                line = f"| {name}, {attention} | refused | {error.args[-1]} | |"
            print(line, flush=True)
    for name, of in OTHERS.items():
        torch.manual_seed(0)
        print(row(name, *compared(*of())), flush=True)


if __name__ == "__main__":
    main()
