"""Operators from a user's own file, given with ``--operators``.

The file declares operators as ``pcg/ops`` does. All ``Operator`` objects among its names are used:

    from pcg.types.operator import Operator

    squared_relu = Operator("squared_relu", "out[i...] = relu(x[i...]) * relu(x[i...])")
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from types import ModuleType

from pcg.errors import InputError
from pcg.files import read_text
from pcg.from_file import module_of
from pcg.language.template import EquationError
from pcg.ops import OPERATORS
from pcg.types.operator import Operator

NAME = re.compile(r"[A-Za-z_]\w*")


def load_operators(path: str | Path) -> tuple[Operator, ...]:
    """Run a file of operator declarations and add its operators to ``OPERATORS``.

    Raises InputError as ``read_operators`` does.
    """
    operators = read_operators(path)
    OPERATORS.add(operators)
    return operators


def read_operators(path: str | Path) -> tuple[Operator, ...]:
    """Run a file of operator declarations, and return the operators among its names, in order.

    Raises InputError naming the file and the line or operator at fault: for a file that is missing
    or fails, an equation without meaning, a name that another operator has, or no operator at all.
    """
    read_text(path, "a Python file that declares operators")
    operators = _declared(Path(path))
    if not operators:
        raise InputError(str(path), "declares no operator, expected NAME = Operator(...)")
    by_name: dict[str, Operator] = {}
    for operator in operators:
        where = f"{path}: operator {operator.name}"
        if not NAME.fullmatch(operator.name):
            raise InputError(where, "expected a name of letters, digits and underscores")
        if by_name.setdefault(operator.name, operator) is not operator:
            raise InputError(where, "is declared twice")
        if operator.parallel is not None:
            problem = f"parallel={operator.parallel!r}: operators that move data are Unity's own"
            raise InputError(where, problem)
        OPERATORS.check_free(operator, where)
    return tuple(by_name.values())


def run_file(path: Path, prefix: str) -> ModuleType:
    """Run a user's Python file as a module. Processes that this one starts can import it too, for
    example for its classes. Raises InputError with the line at fault."""
    try:
        return module_of(path, prefix)
    except EquationError as error:
        # The message names the operator, and the index or the token at fault.
        raise InputError(line_at_fault(path, error), str(error)) from error
    except (Exception, SystemExit) as error:
        problem = f"{type(error).__name__}: {error}"
        raise InputError(line_at_fault(path, error), problem) from error


def _declared(path: Path) -> tuple[Operator, ...]:
    """Return the operators among a file's own names, in order."""
    module = run_file(path, "user_operators")
    # By identity: a file read twice declares equal operators, an imported one is the same object.
    imported = {id(operator) for operator in OPERATORS.values()}
    values = (value for key, value in vars(module).items() if not key.startswith("_"))
    return tuple(v for v in values if isinstance(v, Operator) and id(v) not in imported)


def line_at_fault(path: Path, error: BaseException) -> str:
    """Return the file with the line of it that ran last."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{path}: line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f"{path}: line {lines[-1]}" if lines else str(path)
