"""Errors print as one line, whatever their text, and survive a trip between processes."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcg.errors import InputError, NegativeAnswer, OperatorError, UnityError, one_line


def test_input_error():
    error = InputError("plan.json", "at steps[2]: missing")
    assert str(error) == "plan.json: at steps[2]: missing"
    assert (error.where, error.problem) == ("plan.json", "at steps[2]: missing")


def test_operator_error_names_operator_operand_and_dimension():
    error = OperatorError("matmul", "w", 0, "size 3, expected 4 (index k)")
    assert str(error) == "matmul: operand w, dimension 0: size 3, expected 4 (index k)"


def test_operator_error_without_dimension():
    error = OperatorError("matmul", "w", None, "rank 3, expected 2")
    assert str(error) == "matmul: operand w: rank 3, expected 2"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("a", "b"), 2),
        (OperatorError("a", "b", 0, "c"), 2),
        (NegativeAnswer("a rule is refuted"), 1),
    ],
)
def test_exit_status(error: UnityError, status: int):
    assert error.exit_status == status


@pytest.mark.parametrize(
    "error",
    [InputError("a", "b"), OperatorError("m", "w", 1, "p"), NegativeAnswer("no")],
)
def test_errors_survive_pickling(error: UnityError):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_one_line_joins_lines_and_keeps_spaces():
    assert one_line("a  b\n   c\r\n\nd") == "a  b c d"


def test_one_line_escapes_control_characters():
    assert one_line("\x1b[31mred") == "\\x1b[31mred"


@given(st.text(), st.text())
def test_always_one_printable_line(where: str, problem: str):
    for error in (
        InputError(where, problem),
        OperatorError(where, problem, 3, where),
        NegativeAnswer(problem),
    ):
        assert len(str(error).splitlines()) <= 1
        assert str(error).isprintable()
