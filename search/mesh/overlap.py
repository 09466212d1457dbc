"""Strategies that are fastest with communication that overlaps with computation.

The search over strategies adds up seconds, and how much of them is hidden only a whole plan tells.
So it is asked several times: with all communication counted, with the exchange of weights'
gradients taken to be hidden, with half of the moves hidden; then with each weight's exchange
counted as far as it was exposed in the fastest plan so far. Each answer is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

from pcg.graph import Graph, Node
from pcg.schedule import Schedule, schedule
from search.cost import gradients
from search.derivation import Derivation
from search.mesh.allow import Allowed
from search.mesh.engine import ALL, Choice, Cut, Engine, Exposed
from search.program import SYNC, program, tasks
from search.simulate import Run, run
from search.timeline import exposures

T = TypeVar("T")

FIRST = (ALL, Exposed(exchange=0.0), Exposed(moves=0.5))
AGAIN = (1.0, 0.25)
"""How much of moves counts when exchanges count as far as they were exposed."""


@dataclass(frozen=True, eq=False)
class Tried:
    """A choice of strategies with the plan that it makes, as it was simulated."""

    choice: Choice
    cut: Cut
    steps: Schedule
    run: Run

    @property
    def seconds(self) -> float:
        return self.run.simulation.step_seconds


@dataclass(eq=False)
class Trial:
    """Tries choices of strategies for one graph; each different one is simulated once."""

    engine: Engine
    graph: Graph
    before: Derivation
    """What led to the graph."""
    phases: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds spent, by what they were spent on."""
    _tried: dict[tuple[tuple[int, ...], ...], Tried] = field(init=False, default_factory=dict)

    def choices(self, price: float, allowed: Allowed) -> Iterator[Tried]:
        """Plans with restricted strategies, the first with no overlap in mind; different ones
        only. With a price of memory fewer are looked for: the price is varied instead."""
        found: dict[Tried, None] = {}
        for exposed in FIRST[:2] if price else FIRST:
            found[self._try(price, allowed, exposed)] = None
        best = min(found, key=lambda tried: tried.seconds)
        for moves in () if price else AGAIN:
            exposed = Exposed(moves=moves, weights=self._exposed(best))
            found[self._try(price, allowed, exposed)] = None
        yield from found

    def _try(self, price: float, allowed: Allowed, exposed: Exposed) -> Tried:
        choice = self._timed(
            "choosing", lambda: self.engine.choose(self.graph, price, allowed, exposed)
        )
        key = tuple(choice.codes.values())
        if key not in self._tried:
            self._tried[key] = self._simulated(choice)
        return self._tried[key]

    def _simulated(self, choice: Choice) -> Tried:
        cost = self.engine.cost
        cut = self._timed("building", lambda: self.engine.cut(choice, self.before))
        steps = self._timed("scheduling", lambda: schedule(cut.graph, cut.views))
        done = self._timed(
            "simulating", lambda: run(tasks(program(steps, cost)), cost.machine.devices)
        )
        return Tried(choice, cut, steps, done)

    def _exposed(self, tried: Tried) -> dict[Node, float]:
        """How much of each weight's exchange is exposed, on the first of its devices."""
        weights = gradients(tried.steps).weights
        found: dict[Node, float] = {}
        by_device: dict[int, dict[int, float]] = {}
        for task in tried.run.tasks:
            if task.phase == SYNC:
                device = int(task.duration.groups[0, 0])
                if device not in by_device:
                    by_device[device] = exposures(tried.run, device, SYNC)
                found[weights[task.what]] = by_device[device].get(task.what, 1.0)
        return found

    def _timed(self, phase: str, work: Callable[[], T]) -> T:
        start = perf_counter()
        found = work()
        self.phases[phase] = self.phases.get(phase, 0.0) + perf_counter() - start
        return found
