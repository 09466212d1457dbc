"""Number formats of a run: of weights, of computation, and the scale of the loss."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.job.job import PrecisionName


@contextmanager
def in_float64() -> Generator[None]:
    """As long as it is entered, torch makes tensors in float64 unless told otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class Precision:
    """``dtype`` of weights, their gradients and what is communicated; ``compute``: the shorter
    format of those operators that torch's autocast gives it, if there is one."""

    dtype: torch.dtype
    compute: torch.dtype | None = None
    device: str = "cpu"

    @property
    def needs_scale(self) -> bool:
        """Whether gradients may be too small for the format."""
        return self.compute == torch.float16

    def context(self) -> AbstractContextManager[object]:
        """Operators within it compute as wanted."""
        if self.compute is None:
            return nullcontext()
        return torch.autocast(self.device, self.compute)


@dataclass
class LossScale:
    """What the loss is multiplied with, so that small gradients are not 0 in float16.

    As torch's GradScaler has it (Micikevicius et al., ICLR 2018): halved whenever a gradient is not
    finite, for which the update is left out, and doubled after ``PATIENCE`` good steps. A scale
    that has come down to 1 was not the reason: then gradients are used as they are.
    """

    value: float = 2.0**15
    """At first the largest power of two that float16 holds."""
    good_steps: int = 0

    def accepts(self, gradients: Mapping[str, Tensor], total: Callable[[float], float]) -> bool:
        """Take the scale out of gradients, in place, and say whether to update with them.
        ``total`` adds numbers up over all ranks, which have to agree."""
        bad = sum(float((~torch.isfinite(g)).any()) for g in gradients.values())
        for gradient in gradients.values():
            gradient.div_(self.value)
        if total(bad) > 0 and self.value > 1.0:
            self.value, self.good_steps = self.value / 2.0, 0
            return False
        self.good_steps += 1
        if self.good_steps % PATIENCE == 0:
            self.value *= 2.0
        return True


PATIENCE = 2000
"""Steps."""
PRECISIONS: Mapping[PrecisionName, tuple[torch.dtype, torch.dtype | None]] = {
    "float32": (torch.float32, None),
    "float64": (torch.float64, None),
    "bf16": (torch.float32, torch.bfloat16),
    "fp16": (torch.float32, torch.float16),
}
"""What each name means: float32 and float64 throughout, or mixed with float32 master weights."""


def precision(name: PrecisionName, device: torch.device) -> Precision:
    return Precision(*PRECISIONS[name], device.type)
