"""Import torch and highspy at their first use. Torch takes seconds to load, and proofs, rules and
machines do not need it. Only few planners solve integer programs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import highspy
    import torch
else:

    class _LazyModule:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            value = getattr(importlib.import_module(self._name), attribute)
            # Kernels use the same few functions in every step.
            self.__dict__[attribute] = value
            return value

    highspy, torch = _LazyModule("highspy"), _LazyModule("torch")

__all__ = ["highspy", "torch"]
