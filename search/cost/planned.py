"""The interface of planners: a plan with a report on the search for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from pcg.graph.graph import Graph
from pcg.plan.plan import Plan

Stop = Literal["exhausted", "time", "interrupted"]
"""Why a search ended: all was tried, its seconds were spent, or somebody interrupted."""


@dataclass(frozen=True)
class SearchReport:
    """What a search did: strategies of all operators, plans that were simulated, why it stopped,
    seconds by phase, and how many prices were known from alike operators and plans."""

    strategies: int
    simulated: int
    stop: Stop
    phases: Mapping[str, float]
    known: int = 0

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    def then(self, other: SearchReport) -> SearchReport:
        """Of two searches, one after the other."""
        phases = dict(self.phases)
        for phase, seconds in other.phases.items():
            phases[phase] = phases.get(phase, 0.0) + seconds
        return SearchReport(
            self.strategies + other.strategies,
            self.simulated + other.simulated,
            other.stop,
            phases,
            self.known + other.known,
        )


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
