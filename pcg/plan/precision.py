"""Number formats of a training step.

A precision gives the number format of computations. In ``fp64``, ``fp32`` and ``tf32`` all tensors
have elements of one size; in tf32, matrix units round float32 operands. In ``bf16`` and ``fp16``
(Micikevicius et al., Mixed Precision Training, ICLR 2018) weights are kept in float32, with a copy
in the narrow format during a step. Results of operators are narrow, except values that
``pcg.readings.formats`` calls wide. Gradients of weights are added up in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from pcg.errors import one_of

if TYPE_CHECKING:
    from pcg.device import DType
    from pcg.machine import Machine  # which the help of commands has no need of

Precision: TypeAlias = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True)
class Formats:
    """The number formats of a precision, in bytes per element."""

    products: DType
    """The format in which a device's matrix units compute."""
    narrow: int
    """Bytes of results of operators, and of tensors that move between devices."""
    wide: int
    """Bytes of weights, their gradients, and wide values."""

    @property
    def copy(self) -> int:
        """Bytes of a weight's copy in the narrow format, 0 if there is none."""
        return self.narrow if self.is_mixed else 0

    @property
    def is_mixed(self) -> bool:
        """Whether there are two formats."""
        return self.narrow != self.wide


FORMATS: Mapping[Precision, Formats] = {
    "fp64": Formats("float64", 8, 8),
    "fp32": Formats("float32", 4, 4),
    "tf32": Formats("tf32", 4, 4),
    "bf16": Formats("bf16", 2, 4),
    "fp16": Formats("fp16", 2, 4),
}
OTHER_NAMES: Mapping[str, Precision] = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
}
"""Torch's names of some precisions."""


def precision_of(name: str) -> Precision:
    """Return the precision of a name, which may be torch's. Raises InputError for any other."""
    return one_of("precision", OTHER_NAMES.get(name, name), FORMATS)


def default_precision(machine: Machine) -> Precision:
    """Return the usual precision for training on a machine: bf16 if all its devices are GPUs with a
    rate for it, else fp32."""
    has_bf16 = (kind.kind == "gpu" and kind.flops.bf16 is not None for kind in machine.kinds)
    return "bf16" if all(has_bf16) else "fp32"
