"""The interface of planners: a plan with a report on the search for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple, Protocol

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from pcg.plan.plan import Plan
from search.cost.progress import Improvement
from search.cost.survey import RewriteSurvey

Stop = Literal["exhausted", "time", "interrupted", "no gain"]
"""Why a search ended: all was tried, its time was spent, the user interrupted, or it had found no
better plan for long."""


class NoPlanInTime(NegativeAnswer):
    """The time of a search was up before it had found a plan."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(
            f"{name}: no plan was found within {seconds:.3g} s; a larger --budget, fewer kinds of"
            " cuts (--allow) or --planner data-parallel would help"
        )


@dataclass(frozen=True)
class SearchReport:
    """The report of a search. ``strategies``: those of all operators; ``simulated``: the number of
    plans; ``stop``: why it ended; ``phases``: seconds by phase; ``known``: how often a price was
    known from an equal operator or plan; ``rewriting``: the survey of rewrites, None if it looked
    for none."""

    strategies: int
    simulated: int
    stop: Stop
    phases: Mapping[str, float]
    known: int = 0
    rewriting: RewriteSurvey | None = None

    @property
    def rewrites_left(self) -> int:
        """The number of groups of rewrites that were not explored."""
        return 0 if self.rewriting is None else self.rewriting.left

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    def then(self, other: SearchReport) -> SearchReport:
        """The report of this search followed by another."""
        phases = dict(self.phases)
        for phase, seconds in other.phases.items():
            phases[phase] = phases.get(phase, 0.0) + seconds
        surveys = [survey for survey in (self.rewriting, other.rewriting) if survey is not None]
        return SearchReport(
            self.strategies + other.strategies,
            self.simulated + other.simulated,
            other.stop,
            phases,
            self.known + other.known,
            reduce(RewriteSurvey.beside, surveys) if surveys else None,
        )


class DataParallelStep(NamedTuple):
    """The seconds of a step of a data-parallel plan, and whether the plan fits in memory."""

    seconds: float
    fits: bool = True


class NoFasterPlan(NegativeAnswer):
    """No plan was found that fits and is faster than a known plan of another kind. Slower plans
    were left out. ``report`` and ``data_parallel``: see ``Planned``."""

    def __init__(
        self, name: str, report: SearchReport, data_parallel: DataParallelStep | None
    ) -> None:
        super().__init__(f"{name}: no plan that fits is faster than one of another kind")
        self.report = report
        self.data_parallel = data_parallel


class InterruptedWithPlan(KeyboardInterrupt):
    """The user interrupted the search for a plan of another kind, after it had found one.
    ``seconds``: of a step of that plan."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


@dataclass(frozen=True)
class Planned:
    plan: Plan
    report: SearchReport
    seconds: float
    """The seconds of the search."""
    data_parallel: DataParallelStep | None = None
    """The step of the fastest data-parallel plan that fits, or else of the fastest one, if one was
    priced."""
    notes: tuple[str, ...] = ()
    """Remarks of the planner about the plan, a line each."""
    improvements: tuple[Improvement, ...] = ()
    """The fastest plans in the course of the search, if it was observed."""

    @property
    def data_parallel_seconds(self) -> float | None:
        """Seconds of ``data_parallel``, if there is one."""
        return None if self.data_parallel is None else self.data_parallel.seconds


class Planner(Protocol):
    """A planner: it makes a plan of a graph."""

    def plan(self, name: str, graph: Graph) -> Planned:
        """Return the plan. Raises NegativeAnswer if none fits the machine."""
        ...
