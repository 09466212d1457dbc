"""The table of scalar functions that equations may call. To a proof, a function is only a name.

Over a prime field, a function is evaluated as a fixed pseudo-random map, unless field arithmetic
has it (as reciprocals and equality tests). So an identity that holds for every function still
holds, and one that does not is detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import erf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pcg.lazy import torch

Array = NDArray[Any]


@dataclass(frozen=True)
class ScalarFunction:
    """A function of ``arity`` numbers. ``real`` evaluates it in numpy, ``kernel`` in torch."""

    name: str
    arity: int
    real: (
        Callable[[Array], Array]
        | Callable[[Array, Array], Array]
        | Callable[[Array, Array, Array], Array]
    )
    kernel: Callable[[Any], Any] | Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any]
    flops: int
    """Floating-point operations of one evaluation, for the cost model."""
    slope: Literal["argument", "value", "constant"] = "argument"
    """What the derivative is computed from. "value" is preferred to "argument" if both suffice."""
    invertible: bool = False
    """Whether the value determines the argument."""
    domain: Literal["all", "nonzero", "positive", "nonnegative", "unknown"] = "all"
    """The first arguments for which the result is a number. "unknown" if there may be others."""


_erf = np.vectorize(erf, otypes=[float])


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + _erf(x / np.sqrt(2.0)))


def _eq(x: Array, y: Array) -> Array:
    return np.equal(x, y).astype(np.float64)


def _round_float16(x: Array) -> Array:
    """Round by way of float32, as torch does."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(np.float16).astype(np.float64)


def _round_bfloat16(x: Array) -> Array:
    """Round by way of float32, of which bfloat16 is the upper half. Ties go to even."""
    single = _round_float32(x).astype(np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    upper = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    rounded = upper.astype(np.uint32).view(np.float32)
    return np.where(np.isnan(single), np.float32(np.nan), rounded).astype(np.float64)


def _round_float32(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(np.float64)


def _rounding(number_format: str, real: Callable[[Array], Array]) -> ScalarFunction:
    """Return the function that rounds to a shorter number format, given torch's name of it."""
    kernel = partial(_to_format, number_format)
    return ScalarFunction(
        f"round_{number_format}", 1, real, kernel, 1, "constant", domain="unknown"
    )


def _to_format(number_format: str, x: Any) -> Any:
    return x.to(getattr(torch, number_format))


def _any(x: Array) -> Array:
    return np.sin(1.3 * x + 0.7)


def _any2(x: Array, y: Array) -> Array:
    return np.sin(1.1 * x - 0.8 * y + 0.3)


def _any3(x: Array, y: Array, z: Array) -> Array:
    return np.sin(x * y + 0.9 * z + 0.3)


FUNCTIONS: dict[str, ScalarFunction] = {
    f.name: f
    for f in (
        ScalarFunction("exp", 1, np.exp, lambda x: torch.exp(x), 8, "value", True),
        ScalarFunction("log", 1, np.log, lambda x: torch.log(x), 8, domain="positive"),
        ScalarFunction(
            "relu", 1, lambda x: np.maximum(x, 0.0), lambda x: torch.relu(x), 1, "value"
        ),
        ScalarFunction("gelu", 1, _gelu, lambda x: torch.nn.functional.gelu(x), 12),
        ScalarFunction(
            "recip", 1, np.reciprocal, lambda x: torch.reciprocal(x), 1, "value", True, "nonzero"
        ),
        ScalarFunction(
            "rsqrt", 1, lambda x: x**-0.5, lambda x: torch.rsqrt(x), 4, "value", True, "positive"
        ),
        ScalarFunction(
            "sqrt", 1, np.sqrt, lambda x: torch.sqrt(x), 4, "value", True, "nonnegative"
        ),
        ScalarFunction("power", 2, np.power, lambda x, y: torch.pow(x, y), 16, domain="positive"),
        ScalarFunction("max", 2, np.maximum, lambda x, y: torch.maximum(x, y), 1),
        ScalarFunction("eq", 2, _eq, lambda x, y: (x == y).to(torch.get_default_dtype()), 1),
        _rounding("float16", _round_float16),
        _rounding("bfloat16", _round_bfloat16),
        _rounding("float32", _round_float32),
        ScalarFunction("any1", 1, _any, lambda x: torch.sin(1.3 * x + 0.7), 1, domain="unknown"),
        ScalarFunction(
            "any2", 2, _any2, lambda x, y: torch.sin(1.1 * x - 0.8 * y + 0.3), 1, domain="unknown"
        ),
        ScalarFunction(
            "any3", 3, _any3, lambda x, y, z: torch.sin(x * y + 0.9 * z + 0.3), 1, domain="unknown"
        ),
    )
}
"""The functions that equations may call. ``any1`` to ``any3`` stand for any function in a rule
(``pcg.ops.stand_ins``). Evaluated, each is a function without special laws."""
