"""Pipelines beside the plans of another planner: the better of both.

Only pipelines that are faster than the best other plan are searched for. The other planner asks for
a pipeline before it has tried most of its own plans (``step``), and then leaves out plans that are
not faster. It may ask for a brief search, which improves no pipeline that is slower than its own
plans so far. If that finds none that is faster, or if the planner never asks, pipelines are
searched once it has ended.

A search that is not brief may begin before it is asked for, in a process of its own. Its limit is
that of its beginning, also where there is no second processor: the plan is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from pcg.collection import seldom_collected
from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from search.cost.planned import (
    InterruptedWithPlan,
    NoFasterPlan,
    NoPlanInTime,
    Planned,
    Planner,
    SearchReport,
    Stop,
)
from search.cost.progress import Improvement, Teller, now, silent
from search.refine.processes import Child, Search, begun

_LATEST: tuple[Stop, ...] = ("exhausted", "time", "interrupted")
_Answer = Planned | Stop
"""The best pipeline, or the reason why there is none."""


class _Found(NamedTuple):
    """The answer of a search in another process, and the fastest plans in its course."""

    answer: _Answer | None
    improvements: tuple[Improvement, ...]


@dataclass
class WithPipelines:
    """The better of the plans of a planner and of pipelines."""

    plain: Planner
    pipelined: Callable[[float, float, bool], Planner]
    """A function from a limit of the seconds of a step, the seconds already used, and whether to
    search briefly, to a planner of pipelines."""
    teller: Teller = field(default_factory=Teller)
    """That of both planners."""
    _start: float = field(init=False, default=0.0)
    _answer: _Answer | None = field(init=False, default=None)
    """The answer, once it was asked for."""
    _limit: float = field(init=False, default=0.0)
    """The seconds of a step that it had to be faster than."""
    _has_begun: bool = field(init=False, default=False)
    _child: Child[_Found] | None = field(init=False, default=None)
    """The process in which the search has begun."""

    @seldom_collected()
    def plan(self, name: str, graph: Graph) -> Planned:
        """Return the plan with the faster step; the plain one if both are equal, or if the search
        for it was cut short. Raises the plain planner's NegativeAnswer if neither finds a plan.
        """
        try:
            return self._planned(name, graph)
        finally:
            self._end()

    def _planned(self, name: str, graph: Graph) -> Planned:
        start = self._forget()
        try:
            plain = self.plain.plan(name, graph)
        except NoFasterPlan as none:
            return self._outdone(none, start)
        except KeyboardInterrupt:
            answer = self._answer or self._found_soon("interrupted")
            if isinstance(answer, Planned):
                return answer
            raise
        except NegativeAnswer as none:
            answer = self._answer or self._found_soon("time")
            if isinstance(answer, Planned):
                return answer
            if self._limit == inf:
                raise  # there is no pipeline either
            try:
                return self.pipelined(inf, now() - start, False).plan(name, graph)
            except NegativeAnswer:
                raise none from None
        if self._answer is None and plain.report.stop != "exhausted":
            self._answer = self._found_soon(plain.report.stop)
            if self._answer is None:
                return plain
        answer = self._pipeline(name, graph, plain.plan.estimates.step_seconds)
        if not isinstance(answer, Planned):
            report = replace(plain.report, stop=max(plain.report.stop, answer, key=_LATEST.index))
            return replace(plain, report=report, seconds=now() - start)
        is_faster = answer.plan.estimates.step_seconds < plain.plan.estimates.step_seconds
        return replace(
            plain,
            plan=answer.plan if is_faster else plain.plan,
            report=self._reported(plain.report, answer.report),
            seconds=now() - start,
        )

    def _outdone(self, none: NoFasterPlan, start: float) -> Planned:
        """The pipeline that has outdone all plans without stages."""
        assert isinstance(self._answer, Planned)
        return Planned(
            self._answer.plan,
            self._reported(none.report, self._answer.report),
            now() - start,
            none.data_parallel,
        )

    def _reported(self, plain: SearchReport, answer: SearchReport) -> SearchReport:
        """The report of both searches, either of which may have ended early."""
        return replace(plain.then(answer), stop=max(plain.stop, answer.stop, key=_LATEST.index))

    def _forget(self) -> float:
        """Forget the previous model. Returns the current time."""
        self._start, self._answer, self._limit, self._has_begun = now(), None, 0.0, False
        return self._start

    def _end(self) -> None:
        """End the process in which the search has begun, if there is one."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def begin(self, name: str, graph: Graph, known: float) -> None:
        """Begin to search for the best pipeline, if there is a second processor."""
        if self._has_begun or self._answer is not None:
            return
        self._limit, self._has_begun = known, True
        self._child = begun(_Begun(self, name, graph))

    def step(self, name: str, graph: Graph, known: float, brief: bool) -> float:
        """Seconds of a step of the best pipeline, if it takes less than ``known``, or than was
        known when the search began. Raises InterruptedWithPlan if the search for it was interrupted
        after it had found one, else KeyboardInterrupt."""
        answer = self._pipeline(name, graph, known, brief)
        if answer == "interrupted":
            raise KeyboardInterrupt
        if not isinstance(answer, Planned):
            return inf
        seconds = answer.plan.estimates.step_seconds
        if answer.report.stop == "interrupted":
            raise InterruptedWithPlan(seconds)
        if brief and seconds >= known:
            self._answer = None  # it may still be improved, in the end
        return seconds

    def _pipeline(self, name: str, graph: Graph, known: float, brief: bool = False) -> _Answer:
        """The best pipeline whose step takes less than ``known`` seconds, or the reason why there
        is none. A whole search runs only once."""
        if self._answer is None:
            self._limit = self._limit if self._has_begun else known
            self._has_begun = False
            self._answer = self._awaited() or self.asked(name, graph, brief)
        return self._answer

    def _awaited(self) -> _Answer | None:
        """The answer of the process in which the search has begun. None if there is none."""
        if self._child is None:
            return None
        try:
            self._child.receive()
        except KeyboardInterrupt:
            return self._found_soon("interrupted") or "interrupted"
        return self._received()

    def _found_soon(self, stop: Stop) -> _Answer | None:
        """The answer of that process if it comes soon, after an interrupt or at the deadline of
        both searches. ``stop``: which of these it was."""
        if self._child is None:
            return None
        if stop == "interrupted":
            self._child.interrupt()
        else:
            self._child.wait()
        answer = self._received()
        if not isinstance(answer, Planned):
            return answer and stop
        latest = max(stop, answer.report.stop, key=_LATEST.index)
        return replace(answer, report=replace(answer.report, stop=latest))

    def _received(self) -> _Answer | None:
        """The answer that was received from that process, which ends."""
        assert self._child is not None
        answer, improvements = self._child.searches[0].result
        self._end()
        self.teller.found_beside(improvements)
        return answer

    def asked(self, name: str, graph: Graph, brief: bool = False) -> _Answer:
        """Search for the best pipeline, or find why there is none."""
        try:
            return self.pipelined(self._limit, now() - self._start, brief).plan(name, graph)
        except NoPlanInTime:
            return "time"
        except NegativeAnswer:
            return "exhausted"
        except KeyboardInterrupt:
            return "interrupted"


@dataclass
class _Begun(Search[_Found]):
    """A search for the best pipeline, in a process of its own."""

    both: WithPipelines
    name: str
    graph: Graph
    _found: _Found = field(init=False, default=_Found(None, ()))

    @property
    def result(self) -> _Found:
        """What was found; the answer is None until it is known."""
        return self._found

    def run(self) -> None:
        teller = self.both.teller
        shown, teller.progress = teller.progress, silent  # another process shows its own
        try:
            answer = self.both.asked(self.name, self.graph)
        finally:
            teller.progress = shown
        self._found = _Found(answer, tuple(teller.improvements))

    def take_over(self, result: _Found) -> None:
        self._found = result
