"""Errors for a program that differs from its plan."""

from __future__ import annotations

from pcg.errors import NegativeAnswer, one_line

SHOWN = 100
"""An error message shows at most this many characters of an instruction."""


class Unsound(Exception):
    """An instruction differs from the plan. The text says how, and what was expected."""


class ProgramError(NegativeAnswer):
    """A rank's program differs from the plan."""

    where: str
    """The plan's name."""
    at: str
    """The rank and its instruction."""
    problem: str
    """The difference, and what was expected."""

    def __init__(self, where: str, rank: int, what: object, problem: str) -> None:
        text = one_line(str(what))
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        self.where, self.at, self.problem = where, f"rank {rank}: {shown}", problem
        super().__init__(f"{where}: {self.at}: {problem}")
