"""Number formats of a training step.

A precision says in which format operators compute. In ``fp64``, ``fp32`` and ``tf32`` all tensors
are of one size; tf32 is what matrix units make of float32 operands. In ``bf16`` and ``fp16``
(Micikevicius et al., Mixed Precision Training, ICLR 2018) weights are kept in float32, with a copy
in the narrow format for a step; what operators make is in the narrow format, but for values that
``pcg.readings.formats`` calls wide; gradients of weights add up in float32.
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
    """The number formats of a precision, in bytes an element."""

    products: DType
    """The format in which a device's matrix units compute."""
    narrow: int
    """Of what operators make, and of what is moved between devices."""
    wide: int
    """Of weights, their gradients, and of values that are not narrowed."""

    @property
    def copy(self) -> int:
        """Of a weight's copy in the narrow format."""
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
"""What torch calls some of them."""


def precision_of(name: str) -> Precision:
    """The precision of a name, which may be torch's. Raises InputError for any other."""
    return one_of("precision", OTHER_NAMES.get(name, name), FORMATS)


def default_precision(machine: Machine) -> Precision:
    """In what people train on a machine: bf16 where all its devices are GPUs with a rate for it,
    else fp32."""
    has_bf16 = (kind.kind == "gpu" and kind.flops.bf16 is not None for kind in machine.kinds)
    return "bf16" if all(has_bf16) else "fp32"
