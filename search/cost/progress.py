"""The progress of a search: its status for an observer, the seconds of its phases, and its end.

A search ends on time only if all that it calls looks at the clock. So the deadline is that of the
work under way (``Phases.under_way``), and loops that may take long call ``check_time``, wherever
they are. It raises ``OutOfTime``, which the planner catches that began the search.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

GRACE = 1.0
"""Seconds for which a search goes on after its time where it has no plan yet."""


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


Clock = Callable[[], float]
"""Seconds since some time."""
_CLOCK: ContextVar[Clock] = ContextVar("clock of searches", default=perf_counter)


def now() -> float:
    """Seconds on the clock that searches go by, a wall clock by default."""
    return _CLOCK.get()()


@contextmanager
def timed_by(clock: Clock) -> Generator[None]:
    """Let searches go by another clock, such as that of the processor's seconds."""
    before = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(before)


class OutOfTime(Exception):
    """The time of a search is up."""


@dataclass
class Phases:
    """Seconds that were spent, by what they were spent on; and until when they may be."""

    deadline: float = inf
    """In seconds of ``now``."""
    has_plan: bool = False
    """Whether the search has something to return."""
    grace: float = GRACE
    """Seconds after the deadline until which it goes on without."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return now() > self.deadline

    def part(self, share: float) -> Phases:
        """Those of a first part of the work, which leaves the rest of the time to what makes a plan
        of its results: it ends once it has some."""
        left = max(0.0, self.deadline - now()) * (1 - share)
        return Phases(self.deadline - left, self.has_plan, self.grace + left, self.seconds)

    def check(self) -> None:
        """Raises OutOfTime where the search has to end."""
        if now() > self.deadline + (0.0 if self.has_plan else self.grace):
            raise OutOfTime

    @contextmanager
    def under_way(self) -> Generator[None]:
        """Let ``check_time`` look at this deadline meanwhile."""
        before = _UNDER_WAY.set(self)
        try:
            yield
        finally:
            _UNDER_WAY.reset(before)

    def timed(self, phase: str, work: Callable[[], T]) -> T:
        """What some work comes to; its time counts to a phase. Raises OutOfTime where the search
        has to end."""
        self.check()
        start = now()
        try:
            return work()
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + now() - start


_UNDER_WAY: ContextVar[Phases | None] = ContextVar("search under way", default=None)


def check_time() -> None:
    """Raises OutOfTime where the search under way has to end. Called in every loop that may take
    long; without a search it does nothing."""
    phases = _UNDER_WAY.get()
    if phases is not None:
        phases.check()
