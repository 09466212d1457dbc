"""From a module to a program of ATen operators that change nothing in place."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from contextlib import redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING, Any

from pcg.errors import InputError, UnityError
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.nn import Module

STOPS = "aten.detach.default"
"""It stops gradients; torch's decomposition would forget that."""


def export(
    module: Module, inputs: tuple[Any, ...], kept: Collection[str], where: str
) -> ExportedProgram:
    """The module's program for these inputs; operators in ``kept`` are not taken apart.

    Raises InputError with torch's first line where it cannot export the module.
    """
    # What torch logs on the way to an error is in the error too.
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(module, inputs)
            apart = {
                operator: function
                for operator, function in torch.export.default_decompositions().items()
                if str(operator) not in kept and str(operator) != STOPS
            }
            return program.run_decompositions(apart)
        except UnityError:
            raise
        except Exception as error:
            problem = f"torch.export: {type(error).__name__}: {_first_line(error)}"
            raise InputError(where, problem) from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
