"""The operators of foreign rule files: their names and parameters.

Operators that have another meaning than Unity's operators of the same name are in
``pcg.ops.groups``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class RuleSystem(StrEnum):
    """The system that a rule file is from."""

    FLEXFLOW = "flexflow"
    TASO = "taso"


NUM_INPUTS = "PM_NUM_INPUTS"
NUM_OUTPUTS = "PM_NUM_OUTPUTS"
NUM_DIM = "PM_NUMDIM"
OP_TYPE = "PM_OP_TYPE"
AXIS = "PM_AXIS"
ACTIVATION = "PM_ACTI"
PARALLEL_DIM = "PM_PARALLEL_DIM"
DEGREE = "PM_PARALLEL_DEGREE"
PADDING = "PM_PAD"
STRIDES = ("PM_STRIDE_H", "PM_STRIDE_W")
KERNEL = ("PM_KERNEL_H", "PM_KERNEL_W")
PERMUTATION = "PM_PERM"
SHUFFLE = "PM_OUTSHUFFLE"

DESCRIPTIVE = (OP_TYPE, NUM_INPUTS, NUM_OUTPUTS, NUM_DIM)
"""Parameters that repeat other parts of the file; any operator may have them."""

MAX_OPERANDS = 16
MAX_DEGREE = 1024
MAX_KERNEL = 64
MAX_STRIDE = 16

RANGES: Mapping[str, tuple[int, int]] = {
    NUM_INPUTS: (0, MAX_OPERANDS),
    NUM_OUTPUTS: (1, MAX_OPERANDS),
    NUM_DIM: (0, 4),
    AXIS: (0, 3),
    ACTIVATION: (0, 3),
    PARALLEL_DIM: (0, 2),
    DEGREE: (1, MAX_DEGREE),
    PADDING: (0, 1),
    PERMUTATION: (0, 255),
    SHUFFLE: (0, 1),
    **dict.fromkeys(STRIDES, (1, MAX_STRIDE)),
    **dict.fromkeys(KERNEL, (1, MAX_KERNEL)),
}
"""The least and the greatest value of each parameter; ``PM_OP_TYPE`` is ignored."""


@dataclass(frozen=True)
class ForeignSignature:
    """The systems, operands and parameters of an operator in rule files.

    ``several``: it takes ``arity`` operands or more. ``splits``: it has ``PM_NUM_OUTPUTS`` outputs.
    """

    sources: tuple[RuleSystem, ...]
    arity: int
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    several: bool = False
    splits: bool = False


_BOTH = (RuleSystem.FLEXFLOW, RuleSystem.TASO)
_FLEXFLOW = (RuleSystem.FLEXFLOW,)
_TASO = (RuleSystem.TASO,)
_MOVES = ForeignSignature(_FLEXFLOW, 1, (PARALLEL_DIM, DEGREE))
_WINDOWED = (*STRIDES, PADDING)

SIGNATURES: Mapping[str, ForeignSignature] = {
    "OP_PARTITION": _MOVES,
    "OP_COMBINE": _MOVES,
    "OP_REPLICATE": _MOVES,
    "OP_REDUCE": _MOVES,
    "OP_LINEAR": ForeignSignature(_FLEXFLOW, 2, (ACTIVATION,)),
    "OP_CONCAT": ForeignSignature(_BOTH, 2, (AXIS,), several=True),
    "OP_SPLIT": ForeignSignature(_BOTH, 1, (AXIS,), splits=True),
    "OP_EW_ADD": ForeignSignature(_BOTH, 2),
    "OP_EW_MUL": ForeignSignature(_BOTH, 2),
    "OP_RELU": ForeignSignature(_BOTH, 1),
    "OP_SIGMOID": ForeignSignature(_TASO, 1),
    "OP_TANH": ForeignSignature(_TASO, 1),
    "OP_MATMUL": ForeignSignature(_TASO, 2, (ACTIVATION,)),
    "OP_MUL": ForeignSignature(_TASO, 2),
    "OP_CONV2D": ForeignSignature(_TASO, 2, (*_WINDOWED, ACTIVATION), KERNEL),
    "OP_POOL2D_MAX": ForeignSignature(_TASO, 1, (*_WINDOWED, *KERNEL), (ACTIVATION,)),
    "OP_POOL2D_AVG": ForeignSignature(_TASO, 1, (*_WINDOWED, *KERNEL), (ACTIVATION,)),
    "OP_ENLARGE": ForeignSignature(_TASO, 1, KERNEL),
    "OP_TRANSPOSE": ForeignSignature(_TASO, 1, (PERMUTATION,), (SHUFFLE,)),
    "OP_CONSTANT_IMM": ForeignSignature(_TASO, 0),
    "OP_CONSTANT_ONE": ForeignSignature(_TASO, 0),
    "OP_CONSTANT_ICONV": ForeignSignature(_TASO, 0, (), KERNEL),
    "OP_CONSTANT_POOL": ForeignSignature(_TASO, 0, KERNEL),
}

SPELLINGS: Mapping[str, str] = {
    "OP_REPARTITION": "OP_PARTITION",
    "OP_REDUCTION": "OP_REDUCE",
    "OP_POOL2DMAX": "OP_POOL2D_MAX",
    "OP_POOL2DAVG": "OP_POOL2D_AVG",
    "OP_POOLMAX": "OP_POOL2D_MAX",
    "OP_POOLAVG": "OP_POOL2D_AVG",
    "OP_EWADD": "OP_EW_ADD",
    "OP_EWMUL": "OP_EW_MUL",
    "OP_SCALAR_MUL": "OP_MUL",
    "OP_CONST_IMM": "OP_CONSTANT_IMM",
    "OP_CONST_ONE": "OP_CONSTANT_ONE",
    "OP_CONST_ICONV": "OP_CONSTANT_ICONV",
    "OP_CONST_POOL": "OP_CONSTANT_POOL",
}
"""Other names of the same operators in rule files."""


def canonical(name: str) -> str | None:
    """The name of an operator in ``SIGNATURES``; None if it is unknown."""
    upper = name.upper()
    prefixed = upper if upper.startswith("OP_") else f"OP_{upper}"
    spelled = SPELLINGS.get(prefixed, prefixed)
    return spelled if spelled in SIGNATURES else None
