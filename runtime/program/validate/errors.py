"""Errors that refuse a program for differing from its plan."""

from __future__ import annotations

from pcg.errors import NegativeAnswer, one_line

SHOWN = 100
"""Characters of an instruction that are shown."""


class Unsound(Exception):
    """What was expected of an instruction, and what was found."""


class ProgramError(NegativeAnswer):
    """Some rank's program does not do what the plan says: where, what, and what was expected."""

    where: str
    """The plan."""
    at: str
    """The rank and its instruction."""
    problem: str

    def __init__(self, where: str, rank: int, what: object, problem: str) -> None:
        text = one_line(str(what))
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        self.where, self.at, self.problem = where, f"rank {rank}: {shown}", problem
        super().__init__(f"{where}: {self.at}: {problem}")
