"""Choices of strategies with their simulated plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pcg.graph.graph import Node
from pcg.placement.schedule import Schedule
from search.cost.simulate import TimedTasks
from search.map.choose.choosing import Choice
from search.map.rules.fully_sharded import PlacedGraph

Judged = TypeVar("Judged")


@dataclass(frozen=True)
class SimulatedChoice:
    """A simulated plan, as it is handed to a judge. It is large, and is not kept."""

    choice: Choice
    cut: PlacedGraph
    steps: Schedule
    weights: Sequence[Node]
    """For each weight of the run, the weight of the graph that stands for it."""
    run: TimedTasks

    @property
    def seconds(self) -> float:
        return self.run.simulation.step_seconds


@dataclass(frozen=True, eq=False)
class Tried(Generic[Judged]):
    """A choice of strategies after its simulation. ``seconds``: of a step of its plan; ``exposed``:
    the fraction of each weight's exchange that is exposed; ``judged``: the judge's result."""

    choice: Choice
    seconds: float
    exposed: Mapping[Node, float]
    judged: Judged
