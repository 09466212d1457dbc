"""Pipelines beside another planner's plans: the better of both.

Pipelines are searched for what is faster than the best of the other plans. A planner of deep models
asks for them before it has tried most of its own plans (``rival``), of which it then leaves out
what is not faster than a pipeline; else they are searched once it has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from pcg.collection import seldom_collected
from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from search.cost.planned import NoPlanInTime, Outdone, Planned, Planner, SearchReport, Stop
from search.cost.progress import now

_LATEST: tuple[Stop, ...] = ("exhausted", "time", "interrupted")


@dataclass
class WithPipelines:
    """The better of a planner and pipelines."""

    plain: Planner
    pipelined: Callable[[float, float], Planner]
    """A planner for steps that take less than so many seconds, after a search of so many."""
    _start: float = field(init=False, default=0.0)
    _answer: Planned | Stop | None = field(init=False, default=None)
    """The pipeline, once it was asked for, or why there is none."""
    _limit: float = field(init=False, default=0.0)
    """Seconds of a step that it was to take less than."""

    @seldom_collected()
    def plan(self, name: str, graph: Graph) -> Planned:
        """The plan whose step takes less; the plain one where both take as long, or where the
        search for it was ended. Raises the plain planner's NegativeAnswer where neither has a plan.
        """
        start = self._begin()
        try:
            plain = self.plain.plan(name, graph)
        except Outdone as none:
            assert isinstance(self._answer, Planned)  # which has outdone it
            report = self._reported(none.report, self._answer.report)
            data_parallel = none.data_parallel_seconds
            return Planned(self._answer.plan, report, now() - start, data_parallel)
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
                return self.pipelined(inf, now() - start).plan(name, graph)
            except NegativeAnswer:
                raise none from None
        if self._answer is None and plain.report.stop != "exhausted":
            return plain
        answer = self._pipeline(name, graph, plain.plan.estimates.step_seconds)
        if not isinstance(answer, Planned):
            report = replace(plain.report, stop=max(plain.report.stop, answer, key=_LATEST.index))
            return replace(plain, report=report, seconds=now() - start)
        is_faster = answer.plan.estimates.step_seconds < plain.plan.estimates.step_seconds
        return Planned(
            answer.plan if is_faster else plain.plan,
            self._reported(plain.report, answer.report),
            now() - start,
            plain.data_parallel_seconds,
        )

    def _reported(self, plain: SearchReport, answer: SearchReport) -> SearchReport:
        """On both searches, of which either may have ended early."""
        return replace(plain.then(answer), stop=max(plain.stop, answer.stop, key=_LATEST.index))

    def _begin(self) -> float:
        """Forget the model before; the time of now."""
        self._start, self._answer, self._limit = now(), None, 0.0
        return self._start

    def rival(self, name: str, graph: Graph, known: float) -> float:
        """Seconds of a step of the best pipeline, if that takes less than so many. Raises
        KeyboardInterrupt where the search for it was interrupted."""
        answer = self._pipeline(name, graph, known)
        stop = answer.report.stop if isinstance(answer, Planned) else answer
        if stop == "interrupted":
            raise KeyboardInterrupt
        return answer.plan.estimates.step_seconds if isinstance(answer, Planned) else inf

    def _pipeline(self, name: str, graph: Graph, known: float) -> Planned | Stop:
        """The best pipeline whose step takes less than so many seconds, or why there is none;
        asked for once."""
        if self._answer is None:
            self._limit = known
            self._answer = self._asked(name, graph, known)
        return self._answer

    def _asked(self, name: str, graph: Graph, known: float) -> Planned | Stop:
        try:
            return self.pipelined(known, now() - self._start).plan(name, graph)
        except NoPlanInTime:
            return "time"
        except NegativeAnswer:
            return "exhausted"
        except KeyboardInterrupt:
            return "interrupted"
