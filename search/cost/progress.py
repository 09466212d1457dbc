"""The progress of a search: its status for an observer, the seconds of its phases, and its end.

A search ends on time only if all code that it calls looks at the clock. So the deadline belongs to
the search under way (``Phases.under_way``), and every loop that may take long calls ``check_time``.
This raises ``OutOfTime``, which the planner that began the search catches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from time import perf_counter
from typing import Literal, NamedTuple, TypeVar

T = TypeVar("T")

GRACE = 1.0
"""Seconds for which a search without a plan goes on after its deadline."""
ENDING = 3.5e-4
"""Seconds, for each operator of the model, that it takes to write down the plan at the end.
Measured with models of 5,000 operators."""


PRICING = 0.5
"""The seconds beyond the end of a search in which its last plan may be priced."""
AFTER_INTERRUPT = 0.5
"""Seconds after an interrupt in which plans may be built that are known in outline only."""

Level = Literal["split", "substitute", "map", "refine", "pipeline"]
"""The levels of the search, by their folders."""


@dataclass(frozen=True)
class Status:
    """The status of a search. ``work``: the current part, in words; ``level``: its level;
    ``candidates``: the plans that were priced so far, parts of plans included; ``best``: seconds of
    a step of the fastest plan that can be run so far, or None.

    ``bound``: a lower bound of a step of any plan of the current graph on the current devices, or
    None if it is not known. All these devices are busy for so long even with the strategies that
    compute least; communication is not counted. Other parts of the search may have lower bounds."""

    work: str
    candidates: int
    best: float | None
    level: Level = "split"
    bound: float | None = None

    @property
    def gap(self) -> float | None:
        """The most that the current part can still gain, as a fraction of the best plan's seconds;
        0 if it can't gain."""
        if self.best is None or self.bound is None:
            return None
        return max(0.0, 1 - self.bound / self.best)


Progress = Callable[[Status], None]


def silent(status: Status) -> None:
    """Ignore the status."""


Clock = Callable[[], float]
"""A function that returns seconds since some fixed time."""
_CLOCK: ContextVar[Clock] = ContextVar("clock of searches", default=perf_counter)


def clock() -> Clock:
    """The clock of searches, a wall clock by default."""
    return _CLOCK.get()


def now() -> float:
    """Seconds on the clock of searches."""
    return clock()()


@contextmanager
def timed_by(other: Clock) -> Generator[None]:
    """Let searches use another clock, such as one of processor time."""
    before = _CLOCK.set(other)
    try:
        yield
    finally:
        _CLOCK.reset(before)


class Improvement(NamedTuple):
    """A plan that can be run and is faster than all before. ``after``: seconds of the search until
    then; ``step``: seconds of a step."""

    after: float
    step: float


def found_after(plans: Sequence[Improvement], near: float) -> float | None:
    """The seconds of a search after which a step of its fastest plan took at most ``near`` times as
    long as in the end. None without a plan. ``plans``: the improvements of the search."""
    least = min((plan.step for plan in plans), default=inf)
    return next((plan.after for plan in plans if plan.step <= near * least), None)


@dataclass
class Teller:
    """Keeps the status of a search, and reports every change. Consecutive searches for the same
    plan share one, which is made when they begin."""

    progress: Progress = silent
    improvements: list[Improvement] = field(init=False, default_factory=list[Improvement])
    """The fastest plans in the course of the search."""
    _began: float = field(init=False, default_factory=now)
    _work: str = field(init=False, default="")
    _candidates: int = field(init=False, default=0)
    _best: float = field(init=False, default=inf)
    _level: Level = field(init=False, default="split")
    _bound: float | None = field(init=False, default=None)

    def works_on(
        self, work: str, level: Level, bound: Callable[[], float | None] = lambda: None
    ) -> None:
        """Set the current work, its level and its bound. The bound is only computed if somebody
        observes the search."""
        self._work, self._level = work, level
        self._bound = None if self.progress is silent else bound()
        self._tell()

    def enters(self, level: Level) -> None:
        """Go on with the same work at another level."""
        if level != self._level:
            self._level = level
            self._tell()

    def priced(self, seconds: float = inf) -> None:
        """Count a candidate. ``seconds``: of a step, if the candidate can be run."""
        self._candidates += 1
        self.found(seconds)

    def found(self, seconds: float) -> None:
        """Note the seconds of a step of a plan."""
        if seconds < self._best:
            self._best = seconds
            self.improvements.append(Improvement(now() - self._began, seconds))
        self._tell()

    def found_beside(self, plans: Sequence[Improvement]) -> None:
        """Note the fastest plans in the course of a search in another process."""
        every = sorted({*self.improvements, *plans})
        faster = accumulate((plan.step for plan in every), min, initial=inf)
        self.improvements[:] = [p for p, best in zip(every, faster, strict=False) if p.step < best]
        self._best = min((plan.step for plan in self.improvements), default=inf)
        self._tell()

    def _tell(self) -> None:
        best = self._best if self._best < inf else None
        self.progress(Status(self._work, self._candidates, best, self._level, self._bound))


def reserved(seconds: float, operators: int, each: float) -> float:
    """The seconds of a search's time, at most half of it, that are reserved for its plan: ``each``
    for every operator of the model."""
    return max(0.0, min(each * operators, seconds / 2))


class OutOfTime(Exception):
    """The time of a search is up."""


@dataclass
class Phases:
    """The time of a search: seconds by phase, and the deadline."""

    deadline: float = inf
    """On the clock of ``now``."""
    has_plan: bool = False
    """Whether the search has a plan to return."""
    grace: float = GRACE
    """Seconds after the deadline for which a search without a plan goes on."""
    ending: float = 0.0
    """Seconds before the deadline that are reserved to write down the plan."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    teller: Teller = field(default_factory=Teller)
    """The observer of the levels of the work."""

    @staticmethod
    def of(start: float, seconds: float, operators: int, teller: Teller) -> Phases:
        """The phases of a search that began at ``start`` and may take ``seconds``. Up to half of
        these are reserved to write down the plan. ``operators``: those of the model."""
        ending, grace = reserved(seconds, operators, ENDING), max(0.0, GRACE - ENDING * operators)
        return Phases(start + seconds, ending=ending, grace=grace, teller=teller)

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return now() > self.deadline - self.ending

    def part(self, share: float) -> Phases:
        """The phases of a first part of the work, which may take ``share`` of the time that is
        left. The rest is for making a plan of its results, and without results the part may use it
        too."""
        kept = self._share_of_left(1 - share)
        return replace(self, deadline=self.deadline - kept, grace=self.grace + kept)

    def _share_of_left(self, share: float) -> float:
        """A share of the seconds until the deadline; 0 if there is none."""
        left = max(0.0, self.deadline - now())
        return share * left if left < inf else 0.0

    @contextmanager
    def later(self, seconds: float = PRICING) -> Generator[None]:
        """Put the deadline off by some seconds, for the duration of the context."""
        before = self.deadline
        self.deadline += seconds
        try:
            yield
        finally:
            self.deadline = before

    @contextmanager
    def earlier(self, share: float) -> Generator[None]:
        """Reserve a share of the time that is left for later work, for the duration of the context.
        A search without a plan may use it too."""
        before, kept = (self.deadline, self.grace), self._share_of_left(share)
        self.deadline, self.grace = self.deadline - kept, self.grace + kept
        try:
            yield
        finally:
            self.deadline, self.grace = before

    def end_soon(self) -> None:
        """Bring the deadline forward, after an interrupt: small plans can be built until then."""
        self.deadline, self.grace = min(self.deadline, now() + AFTER_INTERRUPT), 0.0

    @property
    def left(self) -> float:
        """The seconds after which the search has to end; negative if it has to end now."""
        return self.deadline + (-self.ending if self.has_plan else self.grace) - now()

    def check(self) -> None:
        """Raise OutOfTime if the search has to end."""
        if self.left < 0:
            raise OutOfTime

    @contextmanager
    def under_way(self) -> Generator[None]:
        """Make this the deadline that ``check_time`` looks at, for the duration of the context."""
        before = _UNDER_WAY.set(self)
        try:
            yield
        finally:
            _UNDER_WAY.reset(before)

    def timed(self, phase: str, work: Callable[[], T]) -> T:
        """Do some work, and count its time to a phase. Returns its result. Raises OutOfTime if the
        search has to end."""
        self.check()
        start = now()
        try:
            return work()
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + now() - start

    def completed(self, work: Callable[[], T]) -> T:
        """Do the work of writing down the plan. It has no deadline, not even that of a search in
        which this one is under way."""
        self.deadline = inf
        with self.under_way():
            return self.timed("completing", work)


_UNDER_WAY: ContextVar[Phases | None] = ContextVar("search under way", default=None)


def time_left() -> float:
    """The seconds after which the search under way has to end; infinite without a search. To be
    given to solvers, which do not call ``check_time``."""
    phases = _UNDER_WAY.get()
    return inf if phases is None else phases.left


def check_time() -> None:
    """Raise OutOfTime if the search under way has to end. To be called in every loop that may take
    long; without a search it does nothing."""
    phases = _UNDER_WAY.get()
    if phases is not None:
        phases.check()
