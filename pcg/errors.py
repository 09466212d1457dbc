"""Errors that a user can cause, reported in one line and never as a traceback."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

Option = TypeVar("Option", bound=str)


def one_line(text: str) -> str:
    """Return `text` on one line: line breaks become spaces, control characters are escaped."""
    return _escaped(" ".join(line.strip() for line in text.splitlines() if line.strip()))


def printable(text: str) -> str:
    """Return `text` in a form that is safe for a terminal: it cannot move the cursor, change the
    order of letters, or fail to be encoded. Lines end with a newline."""
    return "\n".join(map(_escaped, text.split("\n")))


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class UnityError(Exception):
    """Base of the errors that are reported to the user as one line.

    `exit_status` is the status that a command ends with when the error reaches it.
    """

    exit_status = 2


class InputError(UnityError):
    """Unusable input, such as a file that is missing or has a wrong field."""

    where: str
    """The input at fault, as the user named it: a path, an option, a preset."""
    problem: str
    """What is wrong, and what was expected."""

    def __init__(self, where: str, problem: str) -> None:
        # All fields go to Exception's args, so that the error survives pickling between processes.
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return one_line(f"{self.where}: {self.problem}")


def one_of(what: str, name: str, known: Collection[Option]) -> Option:
    """Return ``name`` if it is one of the ``known`` names. Raises InputError for any other.
    ``what`` is the kind of thing that is named, such as an optimizer."""
    for choice in known:
        if choice == name:
            return choice
    raise InputError(f"{what} {name}", f"unknown, expected one of {', '.join(known)}")


class OperatorError(UnityError):
    """Wrong use of an operator: a rank, size, degree or cut that its equation does not allow."""

    operator: str
    """The operator's name, such as "matmul"."""
    operand: str
    """The operand at fault, by its name in the operator's equation."""
    dimension: int | None
    """The operand's dimension at fault, from 0; None where the operand as a whole is wrong."""
    problem: str
    """What is wrong, and what was expected."""

    def __init__(self, operator: str, operand: str, dimension: int | None, problem: str) -> None:
        super().__init__(operator, operand, dimension, problem)
        self.operator = operator
        self.operand = operand
        self.dimension = dimension
        self.problem = problem

    def __str__(self) -> str:
        dimension = "" if self.dimension is None else f", dimension {self.dimension}"
        return one_line(f"{self.operator}: operand {self.operand}{dimension}: {self.problem}")


class NegativeAnswer(UnityError):
    """The input is fine and the answer is no: a rule refuted, a plan that does not fit."""

    exit_status = 1

    def __str__(self) -> str:
        return one_line(super().__str__())
