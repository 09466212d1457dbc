"""Choices of strategies with their simulated plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pcg.graph.graph import Node
from pcg.placement.schedule import Schedule
from search.cost.events import exposures
from search.cost.simulate import TimedTasks
from search.cost.tasks import SYNC
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

    def exposed(self) -> dict[Node, float]:
        """The fraction of each weight's exchange that is exposed on the first of its devices: the
        mean over the weights for which it stands."""
        exposed: dict[Node, list[float]] = defaultdict(list)
        by_device: dict[int, dict[int, float]] = {}
        for task in self.run.tasks:
            if task.phase == SYNC:
                device = int(task.duration.groups[0, 0])
                if device not in by_device:
                    by_device[device] = exposures(self.run, device, SYNC)
                part = by_device[device].get(task.what, 1.0)
                exposed[self.weights[task.what]].append(part)
        return {node: sum(parts) / len(parts) for node, parts in exposed.items()}


@dataclass(frozen=True, eq=False)
class Tried(Generic[Judged]):
    """A choice of strategies after its simulation. ``seconds``: of a step of its plan; ``exposed``:
    the fraction of each weight's exchange that is exposed; ``judged``: the judge's result."""

    choice: Choice
    seconds: float
    exposed: Mapping[Node, float]
    judged: Judged
