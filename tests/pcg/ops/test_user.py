"""Operators from a user's file: they join the table, and a wrong file is one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.graphs.operators import known_within

from pcg.errors import InputError
from pcg.ops import OPERATORS
from pcg.ops.user import load_operators, read_operators
from pcg.types.operator import Operator

GOOD = """
from pcg.types.operator import Operator
from pcg.ops.algebra import matmul

squared_relu = Operator("squared_relu", "out[i...] = relu(x[i...]) * relu(x[i...])")
"""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    with known_within():
        yield


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


def test_reading_alone_adds_nothing(tmp_path: Path) -> None:
    before = {**OPERATORS}
    (operator,) = read_operators(written(tmp_path, GOOD + "same = squared_relu\n"))
    assert before == {**OPERATORS}
    OPERATORS.add([operator])
    assert OPERATORS["squared_relu"] is operator


HEAD = "from pcg.types.operator import Operator\n\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = ", ": line 1: SyntaxError"),
        ("import nothing_of_this_name", ": line 1: ModuleNotFoundError"),
        ("a = 1\nb = a / 0", ": line 2: ZeroDivisionError"),
        ("import sys\nsys.exit(0)", ": line 2: SystemExit: 0"),
        ("a = 1", ": declares no operator"),
        (
            HEAD + 'op = Operator("op", "out[i] = x[i] * y[j]")',
            ": line 3: operator op: index 'j' is never bound",
        ),
        (
            HEAD + 'op = Operator(\n    "op",\n    "out[i] = x[i] +",\n)',
            ": line 3: operator op: expected a value or an index, got 'end of the equation'",
        ),
        (
            HEAD + 'op = Operator("op", "x[n] -> out[m] = x[m] if m < |n| else 0")',
            ": line 3: operator op: the size of index 'm' does not follow",
        ),
        (
            HEAD + 'op = Operator("op", "x[a..., b...] -> out[a...] = sum b...: x[a..., b...]")',
            ": line 3: operator op: operand x: ranks do not determine the length of a",
        ),
        (
            HEAD + 'op = Operator("op", "out[i] = twice(x[i])")',
            ": line 3: operator op: unknown function 'twice'",
        ),
        (
            HEAD + 'op = Operator("relu", "out[i] = exp(x[i])")',
            ": operator relu: the name is taken",
        ),
        (
            HEAD + 'a = Operator("op", "out[i] = x[i]")\nb = Operator("op", "out[i] = exp(x[i])")',
            ": operator op: is declared twice",
        ),
        (
            HEAD + 'op = Operator("op", "out[i...] = x[i...]", parallel="reduce")',
            ": operator op: parallel='reduce': operators that move data are Unity's own",
        ),
        (
            HEAD + 'op = Operator("two words", "out[i...] = x[i...]")',
            ": operator two words: expected a name of letters, digits and underscores",
        ),
    ],
)
def test_a_wrong_file_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    before = {**OPERATORS}
    with pytest.raises(InputError) as error:
        load_operators(path)
    assert str(error.value).startswith(f"{path}{says}")
    assert "\n" not in str(error.value)
    assert before == {**OPERATORS}


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_operators(tmp_path / "none.py")


def test_a_known_name_is_not_given_to_another_operator() -> None:
    """None of the file's other operators is added either."""
    new, other = Operator("new_one", "out[i...] = x[i...]"), Operator("relu", "out[i...] = x[i...]")
    with pytest.raises(InputError, match="operator relu: the name is taken"):
        OPERATORS.add([new, other])
    assert "new_one" not in OPERATORS
    OPERATORS.add([new])
    OPERATORS.add([new])
    assert OPERATORS["new_one"] is new
    assert new not in OPERATORS.built_in
