"""Exceptions: why a pair of graphs is not proved equal."""

from __future__ import annotations


class Unproved(Exception):
    """The proof failed; the text says where. ``condition``: the script of the side condition that
    the solver did not show to be unsatisfiable; empty if the proof failed for another reason."""

    def __init__(self, text: str, condition: str = "") -> None:
        super().__init__(text)
        self.condition = condition


class TooLarge(Exception):
    """A value whose expansion has more terms than a proof can handle."""


class Unsolvable(Exception):
    """Equations between sizes that no shape satisfies."""


class Undecided(Unsolvable):
    """Equations between sizes or degrees that are not solved; they may or may not have a
    solution."""
