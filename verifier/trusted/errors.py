"""Exceptions: why a question about a pair of graphs was not answered with yes."""

from __future__ import annotations


class Unproved(Exception):
    """The proof did not go through; the text says where. ``condition``: the script that had a
    solution, if it was for one."""

    def __init__(self, text: str, condition: str = "") -> None:
        super().__init__(text)
        self.condition = condition


class TooLarge(Exception):
    """A meaning with more terms than a proof can handle."""


class Unsolvable(Exception):
    """Sizes that no shape satisfies."""


class Undecided(Unsolvable):
    """Sizes or degrees whose equations are beyond us; they may or may not have a solution."""
