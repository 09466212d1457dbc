"""Records the choices that a proof rests on: a search finds them once, later checks follow them.

A prover asks ``options`` which of several ways to try. During the search, ``options`` yields all
ways, and the way that succeeds is recorded. When a proof is checked again, ``options`` yields only
the recorded way. The search is not trusted: the side conditions of every choice are discharged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from verifier.trusted.errors import Unproved


class Steps(Protocol):
    """Where choices come from."""

    def options(self, every: Iterable[str]) -> Iterator[str]:
        """The ways to try, in order; the caller stops at the one that succeeds."""
        ...


class SearchSteps:
    """Yields every way. ``taken`` is the list of ways that succeeded, in order."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def options(self, every: Iterable[str]) -> Iterator[str]:
        depth = len(self.taken)
        for option in every:
            del self.taken[depth:]
            self.taken.append(option)
            yield option


class RecordedSteps:
    """Yields the recorded ways, one per choice, in order. Raises Unproved if none is left."""

    def __init__(self, taken: Sequence[str]) -> None:
        self._taken = taken
        self._position = 0

    def options(self, every: Iterable[str]) -> Iterator[str]:
        if self._position >= len(self._taken):
            raise Unproved("the proof ends before all choices are made")
        self._position += 1
        chosen = self._taken[self._position - 1]
        if chosen not in every:
            raise Unproved(f"the proof takes a way that does not exist: {chosen}")
        yield chosen

    @property
    def is_done(self) -> bool:
        """Whether every recorded way has been used."""
        return self._position == len(self._taken)
