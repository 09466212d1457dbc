"""Operators from a user's file: they join the table, and a wrong file is one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pcg.errors import InputError
from pcg.ops import OPERATORS
from pcg.user import load_operators

GOOD = """
from pcg.operator import Operator
from pcg.ops.algebra import matmul

squared_relu = Operator("squared_relu", "out[i...] = relu(x[i...]) * relu(x[i...])")
"""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = dict(OPERATORS)
    yield
    OPERATORS.clear()
    OPERATORS.update(before)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my_ops.py"
    path.write_text(text, "utf-8")
    return path


def test_declared_operators_join_the_table(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    (operator,) = load_operators(path)
    assert OPERATORS["squared_relu"] is operator
    assert [axis.name for axis in operator.typing((2,), ()).axes] == ["i0", "i1"]
    assert len(load_operators(path)) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = ", "line 1: SyntaxError"),
        ("import nothing_of_this_name", "line 1: ModuleNotFoundError"),
        ("a = 1\nb = a / 0", "line 2: ZeroDivisionError"),
        ("a = 1", "declares no operator"),
        (
            'from pcg.operator import Operator\n\nop = Operator("op", "out[i] = x[i] * y[j]")',
            "line 3: EquationError: operator op:",
        ),
        (
            'from pcg.operator import Operator\nop = Operator("relu", "out[i] = exp(x[i])")',
            "operator relu: the name is taken",
        ),
    ],
)
def test_a_wrong_file_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    before = dict(OPERATORS)
    with pytest.raises(InputError) as error:
        load_operators(path)
    assert str(error.value).startswith(str(path))
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert before == OPERATORS


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_operators(tmp_path / "none.py")
