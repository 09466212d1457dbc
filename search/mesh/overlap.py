"""Strategies that are fastest with communication that overlaps with computation.

The search over strategies adds up seconds, and how much of them is hidden only a whole plan tells.
So it is asked several times: with all communication counted, with the exchange of weights'
gradients taken to be hidden, with half of the moves hidden; then with each weight's exchange
counted as far as it was exposed in the fastest plan so far. Each answer is simulated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np

from pcg.graph import Graph, Node
from pcg.schedule import Schedule, schedule
from search.cost import gradients
from search.derivation import Derivation
from search.mesh.allow import Allowed, everything
from search.mesh.engine import ALL, Choice, Cut, Engine, Exposed
from search.mesh.strategies import IDLE, UNCUT
from search.program import SYNC, UPDATE, program, tasks
from search.progress import Phases
from search.simulate import Run, run
from search.timeline import exposures

Judged = TypeVar("Judged")

FEW = 160
"""Strategies of all operators of a graph that is small: each can be simulated in turn."""

KNOWN = 3
"""So many of the fastest plans so far are starting points of the next choice."""

FIRST = (ALL, Exposed(exchange=0.0), Exposed(moves=0.5))
AT_BEST = Exposed(exchange=0.0, moves=0.25)
AGAIN = (1.0, 0.25)
"""How much of moves counts when exchanges count as far as they were exposed."""


@dataclass(frozen=True)
class Simulated:
    """A plan as it was simulated: what it was made of is large, and not kept."""

    choice: Choice
    cut: Cut
    steps: Schedule
    run: Run

    @property
    def seconds(self) -> float:
        return self.run.simulation.step_seconds


@dataclass(frozen=True, eq=False)
class Tried(Generic[Judged]):
    """A choice of strategies, the seconds of a step of the plan that it makes, how much of each
    weight's exchange is exposed in that, and what else is of interest about the plan."""

    choice: Choice
    seconds: float
    exposed: Mapping[Node, float]
    judged: Judged


@dataclass(eq=False)
class Trial(Generic[Judged]):
    """Tries choices of strategies for one graph, simulating and judging each different one once."""

    engine: Engine
    graph: Graph
    before: Derivation
    """What led to the graph."""
    judge: Callable[[Simulated], Judged]
    phases: Phases = field(default_factory=Phases)
    _tried: dict[object, Tried[Judged]] = field(init=False, default_factory=dict)

    def choices(
        self, price: float, allowed: Allowed, *, brief: bool = False
    ) -> Iterator[Tried[Judged]]:
        """Plans with restricted strategies, the first with no overlap in mind; different ones
        only. ``brief``: fewer are looked for, as with a price of memory, which is varied instead.
        """
        brief = brief or price > 0
        found: dict[Tried[Judged], None] = {}
        for exposed in FIRST[:2] if brief else FIRST:
            found[self._try(price, allowed, exposed)] = None
        best = min(found, key=lambda tried: tried.seconds)
        for moves in () if brief else AGAIN:
            exposed = Exposed(moves=moves, weights=best.exposed)
            found[self._try(price, allowed, exposed)] = None
        if not brief and sum(len(self.engine.space(node)) for node in best.choice.codes) <= FEW:
            starts = [min(found, key=lambda tried: tried.seconds)]
            if all(allowed(node, self.engine.space(node))[UNCUT] for node in best.choice.codes):
                starts.append(self._tried_codes(self._uncut(best.choice)))
            found |= dict.fromkeys(self._polished(tried, allowed) for tried in starts)
        yield from found

    def at_best(self) -> float:
        """Seconds of a step where nearly all communication is hidden: what a graph is not faster
        than, by all that is known before plans are simulated."""
        return self._choice(0.0, everything, AT_BEST).seconds

    def _uncut(self, choice: Choice) -> Choice:
        """Everything on one device."""
        idle = (IDLE,) * len(self.engine.digits)
        return replace(choice, codes=dict.fromkeys(choice.codes, idle))

    def _polished(self, best: Tried[Judged], allowed: Allowed) -> Tried[Judged]:
        """A plan of a small graph after changes of one operator's strategy at a time, as long as
        one is faster when it is simulated."""
        nodes = list(best.choice.codes)
        spaces = {node: self.engine.space(node) for node in nodes}
        rows = {n: spaces[n].codes[np.flatnonzero(allowed(n, spaces[n]))].tolist() for n in nodes}
        last = None
        while last is not best:
            last = best
            for node in nodes:
                for codes in rows[node]:
                    changed = {**best.choice.codes, node: tuple(codes)}
                    tried = self._tried_codes(replace(best.choice, codes=changed))
                    best = min(best, tried, key=lambda t: t.seconds)
        return best

    def in_parts(self, tried: Tried[Judged]) -> Tried[Judged]:
        """The same strategies with weights kept in parts."""
        return self._tried_codes(replace(tried.choice, in_parts=True))

    def _try(self, price: float, allowed: Allowed, exposed: Exposed) -> Tried[Judged]:
        return self._tried_codes(self._choice(price, allowed, exposed))

    def _choice(self, price: float, allowed: Allowed, exposed: Exposed) -> Choice:
        return self.phases.timed(
            "choosing",
            lambda: self.engine.choose(self.graph, price, allowed, exposed, also=self._known()),
        )

    def _known(self) -> list[Mapping[Node, tuple[int, ...]]]:
        """The strategies of the fastest plans so far, which a search that looks at few must not
        miss."""
        best = sorted(self._tried.values(), key=lambda tried: tried.seconds)[:KNOWN]
        return [tried.choice.codes for tried in best]

    def _tried_codes(self, choice: Choice) -> Tried[Judged]:
        key = (choice.in_parts, *choice.codes.values())
        if key not in self._tried:
            self._tried[key] = self._simulated(choice)
        return self._tried[key]

    def _simulated(self, choice: Choice) -> Tried[Judged]:
        cost = self.engine.cost
        cut = self.phases.timed("building", lambda: self.engine.cut(choice, self.before))
        steps = self.phases.timed("scheduling", lambda: schedule(cut.graph, cut.views))
        done = self.phases.timed(
            "simulating", lambda: run(tasks(program(steps, cost)), cost.machine.devices)
        )
        made = Simulated(choice, cut, steps, done)
        return Tried(choice, made.seconds, _exposed(made), self.judge(made))


def _exposed(made: Simulated) -> dict[Node, float]:
    """How much of each weight's exchange is exposed, on the first of its devices."""
    weights = gradients(made.steps).weights
    found: dict[Node, float] = {}
    by_device: dict[int, dict[int, float]] = {}
    for task in made.run.tasks:
        if task.phase == SYNC:
            device = int(task.duration.groups[0, 0])
            if device not in by_device:
                by_device[device] = exposures(made.run, device, SYNC)
            found[weights[task.what]] = by_device[device].get(task.what, 1.0)
    return found


def updates(made: Run) -> float:
    """Seconds for which a device updates weights at most."""
    total: dict[int, float] = defaultdict(float)
    for task in made.tasks:
        if task.phase == UPDATE:
            for devices, seconds in zip(task.duration.groups, task.duration.seconds, strict=True):
                for device in devices.tolist():
                    total[device] += float(seconds)
    return max(total.values(), default=0.0)
