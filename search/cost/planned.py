"""The interface of planners: a plan with a report on the search for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal, Protocol

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from pcg.plan.plan import Plan
from search.cost.survey import RewriteSurvey

Stop = Literal["exhausted", "time", "interrupted", "no gain"]
"""Why a search ended: all was tried, its seconds were spent, somebody interrupted, or it had found
nothing better for long."""


class NoPlanInTime(NegativeAnswer):
    """The time of a search was up before it had a plan."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(
            f"{name}: no plan was found within {seconds:.3g} s; a larger --budget, fewer kinds of"
            " cuts (--allow) or --planner data-parallel would help"
        )


@dataclass(frozen=True)
class SearchReport:
    """What a search did: strategies of all operators, plans that were simulated, why it stopped,
    seconds by phase, how many prices were known from alike operators and plans, and what came of
    rewrites; None where none were looked for."""

    strategies: int
    simulated: int
    stop: Stop
    phases: Mapping[str, float]
    known: int = 0
    rewriting: RewriteSurvey | None = None

    @property
    def rewrites_left(self) -> int:
        """How many groups of rewrites stayed unexplored."""
        return 0 if self.rewriting is None else self.rewriting.left

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    def then(self, other: SearchReport) -> SearchReport:
        """Of two searches, one after the other."""
        phases = dict(self.phases)
        for phase, seconds in other.phases.items():
            phases[phase] = phases.get(phase, 0.0) + seconds
        surveys = [one for one in (self.rewriting, other.rewriting) if one is not None]
        return SearchReport(
            self.strategies + other.strategies,
            self.simulated + other.simulated,
            other.stop,
            phases,
            self.known + other.known,
            reduce(RewriteSurvey.beside, surveys) if surveys else None,
        )


class Outdone(NegativeAnswer):
    """No plan that fits was found, but one of another kind is known, so that slower ones were left
    out. ``report`` and ``data_parallel_seconds`` are as in ``Planned``."""

    def __init__(
        self, name: str, report: SearchReport, data_parallel_seconds: float | None
    ) -> None:
        super().__init__(f"{name}: no plan that fits is faster than one of another kind")
        self.report = report
        self.data_parallel_seconds = data_parallel_seconds


@dataclass(frozen=True)
class Planned:
    plan: Plan
    report: SearchReport
    seconds: float
    """That the search took."""
    data_parallel_seconds: float | None = None
    """Of the fastest data-parallel plan, whether it fits or not, where that was priced."""
    notes: tuple[str, ...] = ()
    """What the planner has to say of the plan, a line each."""


class Planner(Protocol):
    """Anything that makes a plan of a graph."""

    def plan(self, name: str, graph: Graph) -> Planned:
        """The plan; raises NegativeAnswer where none fits the machine."""
        ...
