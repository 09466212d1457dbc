"""The Python API and the command line. Each module declares the options of one command.

    plan = unity.optimize(model, inputs, machine="dgx-h100", nodes=2)
    model = unity.parallelize(model, plan)

``unity.nn`` has layers for models. Functions are loaded at their first use, because torch takes
seconds to load.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pcg.errors import InputError, NegativeAnswer, UnityError
    from unity import nn as nn
    from unity.api import (
        ParallelModule,
        PlannedModel,
        load_plan,
        optimize,
        parallelize,
    )

__all__ = [
    "InputError",
    "NegativeAnswer",
    "ParallelModule",
    "PlannedModel",
    "UnityError",
    "load_plan",
    "nn",
    "optimize",
    "parallelize",
]

_ERRORS = ("InputError", "NegativeAnswer", "UnityError")


class _Package(ModuleType):
    """The package. A function keeps its name when the command module of the same name is loaded."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "nn" or not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "nn":
        return import_module("unity.nn")
    return getattr(import_module("pcg.errors" if name in _ERRORS else "unity.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
