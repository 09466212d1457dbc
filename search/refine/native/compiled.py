"""Functions that are compiled to machine code when they are first called.

The code is kept beside the module, or in the user's cache folder, so later runs load it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function in machine code. Arguments are numbers, arrays, and named tuples of arrays."""
    # error_model: a division by zero gives inf or nan, as in numpy. Sums keep their order.
    # _nrt: without counts of references, which take most of the time of small functions. Hence
    # compiled functions make no arrays; they only write to those that they are given.
    options: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}
    return cast(Callable[P, R], njit(**options)(function))
