"""The number formats of a run in torch, and the loss scale."""

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
    """Make float64 torch's default format within a block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class RunFormats:
    """The number formats of a run."""

    wide: torch.dtype
    """The format of weights, their gradients, and values that stay wide."""
    narrow: torch.dtype
    """The format of all other results of operators."""
    autocast: torch.dtype | None = None
    """The format of torch.autocast, if the user's training loop runs within it."""
    device: str = "cpu"
    """The type of the device, for torch.autocast."""

    @property
    def is_mixed(self) -> bool:
        """Whether wide and narrow format differ."""
        return self.wide != self.narrow

    @property
    def needs_scale(self) -> bool:
        """Whether gradients may underflow in the narrow format."""
        return self.narrow == torch.float16

    def context(self) -> AbstractContextManager[object]:
        """A context in which operators run: torch.autocast if it is set, else nothing."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device, self.autocast)


@dataclass
class LossScale:
    """The factor by which the loss is multiplied, so that small gradients do not underflow to 0 in
    float16.

    As in torch's GradScaler (Micikevicius et al., ICLR 2018): if a gradient is not finite, the
    update is skipped and the scale is halved. After every ``PATIENCE`` good steps it is doubled.
    At a scale of 1 the scale is not the reason, so that gradients are used even if not finite.
    """

    value: float = 2.0**15
    """The scale. It begins at the largest power of two that float16 can represent."""
    good_steps: int = 0
    """Accepted updates since the last skipped one."""

    def accepts(self, gradients: Mapping[str, Tensor], total: Callable[[float], float]) -> bool:
        """Divide gradients by the scale, in place. Return whether to update with them. ``total``
        adds up a number over all ranks, so that all ranks return the same."""
        if total(unscaled(list(gradients.values()), self.value)) > 0 and self.value > 1.0:
            self.value, self.good_steps = self.value / 2.0, 0
            return False
        self.good_steps += 1
        if self.good_steps % PATIENCE == 0:
            self.value *= 2.0
        return True


def unscaled(gradients: list[Tensor], scale: float) -> float:
    """Divide gradients by a loss scale, in place. Return 1 if any is not finite, else 0. The host
    waits for the device once."""
    if not gradients:
        return 0.0
    found = torch.zeros((), dtype=torch.float32, device=gradients[0].device)
    # torch's GradScaler uses the same function.
    torch._amp_foreach_non_finite_check_and_unscale_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        gradients, found, torch.full_like(found, 1.0 / scale)
    )
    return float(found)


PATIENCE = 2000
"""Good steps until the loss scale is doubled."""
DTYPES: Mapping[DType, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""Torch's name of each number format. tf32 is float32 with another setting."""


def run_formats(precision: Precision, device: torch.device) -> RunFormats:
    """The formats of a precision on a device."""
    formats = FORMATS[precision]
    narrow = DTYPES[formats.products]
    return RunFormats(torch.float32 if formats.is_mixed else narrow, narrow, device=device.type)


def allow_tf32(*, allowed: bool) -> None:
    """Set whether CUDA's matrix units may compute with float32 operands in tf32."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
