"""Products of runs of rows in double precision, which torch's own do not take.

``torch.nn.functional.grouped_mm`` multiplies runs of rows by a matrix each; mixtures of experts use
it. It takes no float64, in which modules are compared with their graphs. Meanwhile it is written as
a product for each run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor


@contextmanager
def grouped_in_double() -> Generator[None]:
    """As long as it is entered, torch's grouped products take float64 too."""
    with ExitStack() as stack:
        for owner, name in ((torch.nn.functional, "grouped_mm"), (torch, "_grouped_mm")):
            own = getattr(owner, name, None)
            if own is not None:
                stack.enter_context(patch.object(owner, name, _in_double(own)))
        yield


def _in_double(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def grouped(mat_a: Tensor, mat_b: Tensor, *, offs: Any = None, **given: Any) -> Tensor:
        of_runs = mat_a.dim() == 2 and mat_b.dim() == 3
        is_plain = all(value is None for value in given.values())
        if mat_a.dtype != torch.float64 or offs is None or not (of_runs and is_plain):
            return own(mat_a, mat_b, offs=offs, **given)
        ends: list[int] = offs.tolist()
        runs = [
            mat_a[begin:end] @ matrix
            for begin, end, matrix in zip([0, *ends], ends, mat_b, strict=False)
        ]
        # Rows beyond the last run belong to none; what they hold is not said, and read by nobody.
        beyond = mat_a.new_zeros(len(mat_a) - ends[-1], mat_b.shape[-1])
        return torch.cat([*runs, beyond])

    return grouped
