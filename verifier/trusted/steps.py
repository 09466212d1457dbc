"""Records the choices that a proof rests on: found by search once, only followed afterwards.

A prover asks ``options`` which of several ways to try. While searching it is told all of them, and
the way that succeeded is written down; a proof that is checked again is told only that one. So the
search is not trusted: whatever it chose, what follows from the choice is discharged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from verifier.trusted.errors import Unproved


class Steps(Protocol):
    """Where choices come from."""

    def options(self, every: Iterable[str]) -> Iterator[str]:
        """The ways to try, each written down while it is tried."""
        ...


class Searching:
    """Tries every way, and keeps what succeeds."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def options(self, every: Iterable[str]) -> Iterator[str]:
        mark = len(self.taken)
        for option in every:
            del self.taken[mark:]
            self.taken.append(option)
            yield option


class Following:
    """Takes the ways written down, in order. Raises Unproved where there are none left."""

    def __init__(self, taken: Sequence[str]) -> None:
        self._taken = taken
        self._at = 0

    def options(self, every: Iterable[str]) -> Iterator[str]:
        if self._at >= len(self._taken):
            raise Unproved("the proof ends before all choices are made")
        self._at += 1
        chosen = self._taken[self._at - 1]
        if chosen not in every:
            raise Unproved(f"the proof takes a way that does not exist: {chosen}")
        yield chosen

    @property
    def is_done(self) -> bool:
        """Whether every choice written down was made."""
        return self._at == len(self._taken)
