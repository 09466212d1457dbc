"""Import torch at its first use: it takes seconds to load, and proofs, rules and machines need none
of it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:

    class _LazyModule:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            value = getattr(importlib.import_module(self._name), attribute)
            # Kernels ask for the same few functions in every step.
            self.__dict__[attribute] = value
            return value

    torch = _LazyModule("torch")

__all__ = ["torch"]
