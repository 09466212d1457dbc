"""The progress of a search: its status for an observer, and the seconds of its phases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Status:
    """How far a search is. ``work``: what it looks at now, in words; ``candidates``: how many plans
    it has priced, parts of one too; ``best``: seconds of a step of the fastest that can be run so
    far, None while there is none."""

    work: str
    candidates: int
    best: float | None


Progress = Callable[[Status], None]


def silent(status: Status) -> None:
    """Say nothing."""


@dataclass
class Teller:
    """Keeps the status of a search, and tells it whenever it changes. Searches that go on one after
    the other for the same plan share one."""

    progress: Progress = silent
    _work: str = field(init=False, default="")
    _candidates: int = field(init=False, default=0)
    _best: float = field(init=False, default=inf)

    def works_on(self, work: str) -> None:
        """What the search does from now on."""
        self._work = work
        self._tell()

    def priced(self, seconds: float = inf) -> None:
        """A candidate was priced, at so many seconds of a step if it can be run."""
        self._candidates += 1
        self.found(seconds)

    def found(self, seconds: float) -> None:
        """A plan takes so many seconds a step."""
        self._best = min(self._best, seconds)
        self._tell()

    def _tell(self) -> None:
        best = self._best if self._best < inf else None
        self.progress(Status(self._work, self._candidates, best))


class OutOfTime(Exception):
    """The time of a search is up, and it has something to return."""


@dataclass
class Phases:
    """Seconds that were spent, by what they were spent on; and until when they may be."""

    deadline: float = inf
    """In seconds of ``perf_counter``."""
    has_plan: bool = False
    """Whether the search may end: without a plan it goes on."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return perf_counter() > self.deadline

    def timed(self, phase: str, work: Callable[[], T]) -> T:
        """What some work comes to; its time counts to a phase. Raises OutOfTime where the time is
        up and there is a plan."""
        if self.has_plan and self.is_over:
            raise OutOfTime
        start = perf_counter()
        result = work()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + perf_counter() - start
        return result
