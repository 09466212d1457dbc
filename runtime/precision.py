"""Number formats of a run: what weights are kept in, and what operators compute in."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from runtime.job import PrecisionName


@dataclass(frozen=True)
class Precision:
    """``dtype`` of weights, their gradients and what is communicated; ``compute``: the shorter
    format of those operators that torch's autocast gives it, if there is one."""

    dtype: torch.dtype
    compute: torch.dtype | None = None
    device: str = "cpu"

    def context(self) -> AbstractContextManager[object]:
        """Operators within it compute as wanted."""
        if self.compute is None:
            return nullcontext()
        return torch.autocast(self.device, self.compute)


PRECISIONS: Mapping[PrecisionName, tuple[torch.dtype, torch.dtype | None]] = {
    "float32": (torch.float32, None),
    "float64": (torch.float64, None),
    "bf16": (torch.float32, torch.bfloat16),
    "fp16": (torch.float32, torch.float16),
}
"""What each name means: float32 and float64 throughout, or mixed with float32 master weights."""


def precision(name: PrecisionName, device: torch.device) -> Precision:
    return Precision(*PRECISIONS[name], device.type)
