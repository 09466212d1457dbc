"""Pipelines beside the plans of another planner: the better of both.

Only pipelines that are faster than the best other plan are searched for. The other planner asks for
a pipeline before it has tried most of its own plans (``rival``), and then leaves out plans that are
not faster. It may ask for a brief search, which improves no pipeline that is slower than its own
plans so far. If that finds none that is faster, or if the planner never asks, pipelines are
searched once it has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

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
from search.cost.progress import now

_LATEST: tuple[Stop, ...] = ("exhausted", "time", "interrupted")


@dataclass
class WithPipelines:
    """The better of the plans of a planner and of pipelines."""

    plain: Planner
    pipelined: Callable[[float, float, bool], Planner]
    """A function from a limit of the seconds of a step, the seconds already used, and whether to
    search briefly, to a planner of pipelines."""
    _start: float = field(init=False, default=0.0)
    _answer: Planned | Stop | None = field(init=False, default=None)
    """The pipeline, once it was asked for; or the reason why there is none."""
    _limit: float = field(init=False, default=0.0)
    """The seconds of a step that it had to be faster than."""

    @seldom_collected()
    def plan(self, name: str, graph: Graph) -> Planned:
        """Return the plan with the faster step; the plain one if both are equal, or if the search
        for it was cut short. Raises the plain planner's NegativeAnswer if neither finds a plan.
        """
        start = self._begin()
        try:
            plain = self.plain.plan(name, graph)
        except NoFasterPlan as none:
            return self._outdone(none, start)
        except KeyboardInterrupt:
            if isinstance(self._answer, Planned):
                return self._answer
            raise
        except NegativeAnswer as none:
            if isinstance(self._answer, Planned):
                return self._answer
            if self._limit == inf:
                raise  # there is no pipeline either
            try:
                return self.pipelined(inf, now() - start, False).plan(name, graph)
            except NegativeAnswer:
                raise none from None
        if self._answer is None and plain.report.stop != "exhausted":
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

    def _begin(self) -> float:
        """Forget the previous model. Returns the current time."""
        self._start, self._answer, self._limit = now(), None, 0.0
        return self._start

    def rival(self, name: str, graph: Graph, known: float, brief: bool) -> float:
        """Seconds of a step of the best pipeline, if it takes less than ``known``. Raises
        InterruptedWithPlan if the search for it was interrupted after it had found one, else
        KeyboardInterrupt."""
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

    def _pipeline(
        self, name: str, graph: Graph, known: float, brief: bool = False
    ) -> Planned | Stop:
        """The best pipeline whose step takes less than ``known`` seconds, or the reason why there
        is none. A whole search runs only once."""
        if self._answer is None:
            self._limit = known
            self._answer = self._asked(name, graph, known, brief)
        return self._answer

    def _asked(self, name: str, graph: Graph, known: float, brief: bool) -> Planned | Stop:
        try:
            return self.pipelined(known, now() - self._start, brief).plan(name, graph)
        except NoPlanInTime:
            return "time"
        except NegativeAnswer:
            return "exhausted"
        except KeyboardInterrupt:
            return "interrupted"
