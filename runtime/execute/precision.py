"""Number formats of a run as torch has them, and the scale of the loss."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from pcg.device import DType
from pcg.plan.precision import FORMATS, Precision


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
class RunFormats:
    """``wide`` of weights, their gradients, and values that stay wide; ``narrow`` of what else
    operators make. ``autocast``: where a loop of one's own asks torch for it, the format of the
    operators that torch gives it."""

    wide: torch.dtype
    narrow: torch.dtype
    autocast: torch.dtype | None = None
    device: str = "cpu"

    @property
    def is_mixed(self) -> bool:
        """Whether there are two formats."""
        return self.wide != self.narrow

    @property
    def needs_scale(self) -> bool:
        """Whether gradients may be too small for the format."""
        return self.narrow == torch.float16

    def context(self) -> AbstractContextManager[object]:
        """Operators within it compute as wanted."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device, self.autocast)


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
DTYPES: Mapping[DType, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""Number formats as torch has them; tf32 is a setting for float32."""


def run_formats(precision: Precision, device: torch.device) -> RunFormats:
    """The formats of a precision on a device."""
    formats = FORMATS[precision]
    narrow = DTYPES[formats.products]
    return RunFormats(torch.float32 if formats.is_mixed else narrow, narrow, device=device.type)


def allow_tf32(*, allowed: bool) -> None:
    """Whether CUDA's matrix units may take float32 operands as tf32, from now on."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
