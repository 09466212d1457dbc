"""Operators from a user's own file, given with ``--operators``.

Such a file declares operators as ``pcg/ops`` does; every ``Operator`` among its names takes part:

    from pcg.operator import Operator

    squared_relu = Operator("squared_relu", "out[i...] = relu(x[i...]) * relu(x[i...])")
"""

from __future__ import annotations

import sys
import traceback
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from pcg.errors import InputError
from pcg.files import read_text
from pcg.operator import Operator
from pcg.ops import OPERATORS


def load_operators(path: str | Path) -> tuple[Operator, ...]:
    """Run a file of operator declarations and add its operators to ``OPERATORS``.

    Raises InputError naming the file and the line at fault: a file that is missing or fails, an
    equation without meaning, a name that another operator has, or no operator at all.
    """
    read_text(path, "a Python file that declares operators")
    found = _declared(Path(path))
    if not found:
        raise InputError(str(path), "declares no operator, expected NAME = Operator(...)")
    for operator in found:
        if OPERATORS.get(operator.name, operator) != operator:
            raise InputError(str(path), f"operator {operator.name}: the name is taken")
    OPERATORS.update({operator.name: operator for operator in found})
    return found


def _declared(path: Path) -> tuple[Operator, ...]:
    """The operators among a file's own names, in order."""
    name = f"user_operators_{path.stem}"
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and the like look their module up
    try:
        loader.exec_module(module)
    except Exception as error:
        raise InputError(_where(path, error), f"{type(error).__name__}: {error}") from error
    # By identity: a file read twice declares equal operators, an imported one is the same object.
    imported = {id(operator) for operator in OPERATORS.values()}
    values = (value for key, value in vars(module).items() if not key.startswith("_"))
    return tuple(v for v in values if isinstance(v, Operator) and id(v) not in imported)


def _where(path: Path, error: Exception) -> str:
    """The file with the line of it that was running last."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{path}: line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f"{path}: line {lines[-1]}" if lines else str(path)
