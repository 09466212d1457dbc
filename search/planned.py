"""What planners are asked for: a plan, and what the search for it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pcg.graph import Graph
from pcg.plan import Plan


@dataclass(frozen=True)
class Report:
    """What a search did: strategies of all operators, plans that were simulated, why it stopped,
    seconds by phase."""

    strategies: int
    simulated: int
    stop: str
    phases: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


@dataclass(frozen=True)
class Planned:
    plan: Plan
    report: Report
    seconds: float
    """That the search took."""
    data_parallel_seconds: float | None = None
    """Of the fastest data-parallel plan, whether it fits or not, where that was priced."""


class Planner(Protocol):
    """Anything that makes a plan of a graph."""

    def plan(self, name: str, graph: Graph) -> Planned:
        """The plan; raises NegativeAnswer where none fits the machine."""
        ...
