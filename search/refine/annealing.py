"""Annealing of a whole plan under its simulation: any operator on any devices.

Problem: choose the cuts of every operator and the array of devices on which it runs, so that a
simulated step takes least time. Meshes can express halves and thirds of a machine. Branches of
unequal work, or devices of two speeds, may want 5 of 8 devices and 3 of 8.

Method: simulated annealing (Kirkpatrick et al., Science 1983; over plans: Jia et al., MLSys 2019,
section 5), with changes of operators that are connected (``moves``). It first searches widely: from
the known plan, from all operators on one device, and from branches on devices of their own. Then it
searches near the fastest plan. Metropolis' rule draws its threshold before a state is simulated, so
most states are ruled out by a bound or by a part of their simulation (``delta``).

Complexity: up to ``STATES`` states for each operator are tried, and up to ``WORK`` operators in all
states together. The same seed gives the same plan. A heuristic: no proof says what is fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, log
from random import Random
from typing import Literal, NamedTuple

from search.map.choose.choosing import Choice, Chooser
from search.map.space.mapping import OperatorMapping
from search.refine.delta import DeltaSimulator
from search.refine.moves import BROAD, FINE, Mappings, Moves, Shares

Start = Literal["best", "alone", "apart"]
"""The start of an annealing: the best plan so far, all operators on one device, or the best plan
with branches on devices of their own."""
WORK = 800_000
"""The most operators of all states that are tried, added up."""
STATES = 1700
"""The most states that are tried for each operator. They are enough for a small graph."""
Price = Callable[[tuple[OperatorMapping, ...], float], float | None]
"""A function from a state, as the mappings of all operators in the order of the graph, and a limit
to the seconds of its step; None if they are no less than the limit."""


class Stage(NamedTuple):
    """An annealing. ``part``: its fraction of the work; ``heat``: its first temperature as a
    fraction of the seconds of a step; ``shares``: the kinds of its changes."""

    part: float
    heat: float
    start: Start
    shares: Shares = BROAD


Stages = tuple[Stage, ...]
"""Annealings in order."""
WIDELY: Stages = (Stage(0.2, 0.03, "best"), Stage(0.2, 0.03, "alone"), Stage(0.15, 0.03, "apart"))
NEARBY: Stages = (
    Stage(0.15, 0.02, "best", FINE),
    Stage(0.15, 0.02, "best", FINE),
    Stage(0.15, 0.01, "best", FINE),
)
LAYOUTS = 60
"""The number of layouts of a fork's branches among which the start ``apart`` is chosen."""
FEW = 10
"""In a graph with fewer operators, each takes a larger part of the step, so the temperature is
higher in proportion."""
COLD = 2e-4
"""The last temperature, as a fraction of the seconds of a step."""


@dataclass
class Annealer:
    """Improves choices for one graph. ``is_over``: whether time is up."""

    chooser: Chooser
    delta: DeltaSimulator
    is_over: Callable[[], bool] = lambda: False
    work: int = WORK
    seed: int = 0
    price: Price | None = None
    """By default the seconds of a step by delta simulation."""

    def __post_init__(self) -> None:
        self._graph = self.delta.pieces.graph
        self._devices = self.chooser.pricing.cost.machine.devices
        random = Random(self.seed)
        self._moves = Moves(self._graph, self.chooser.spaces, self._devices, random)
        self._random = random
        self._least = inf
        self._best: Mappings | None = None
        """The fastest state so far, and its seconds."""
        self._known: dict[tuple[OperatorMapping, ...], tuple[float, bool]] = {}
        """Seconds of states: a lower bound, or exact (True). A fifth of all states occur again. A
        state is the mappings of the operators, in the order of the graph, which all moves keep."""

    def annealed(self, choice: Choice, stages: Stages = WIDELY + NEARBY) -> Choice:
        """Return the best choice that is found, or ``choice`` if none is faster."""
        builder, nodes = self.delta.pieces.builder, self._graph.operators
        best: Mappings = {node: builder.mapping(choice, node) for node in nodes}
        is_by_time = self.price is None
        seconds = self.delta.seconds(choice) if is_by_time else self._seconds(best, inf)
        if seconds is None:
            return choice
        self._least, self._best = seconds, None
        for stage in stages:
            states = int(stage.part * min(self.work / len(nodes), STATES * len(nodes)))
            if not states:
                continue
            hot = stage.heat * max(1.0, FEW / len(nodes))
            self._moves.shares = stage.shares
            self._run(self._start(stage.start, best), states, hot)
            best = self._best or best
            other = self._turned_over(best)
            seconds = None if other is None else self._seconds(other, self._least)
            if other is not None and seconds is not None:
                best = self._best = other
                self._least = seconds
        return self.so_far(choice)

    @property
    def best(self) -> tuple[tuple[OperatorMapping, ...] | None, float]:
        """The best state so far, None if nothing is faster than the start, and its seconds."""
        return None if self._best is None else tuple(self._best.values()), self._least

    def take_over(self, best: tuple[tuple[OperatorMapping, ...] | None, float]) -> None:
        """Take over the best state of another annealing of the same choice."""
        state, seconds = best
        if state is not None:
            self._keep(dict(zip(self._graph.operators, state, strict=True)), seconds)

    def so_far(self, choice: Choice) -> Choice:
        """The best choice that was found until now, also by an annealing that was interrupted.
        ``choice``: where it began, which is returned if nothing is faster."""
        return choice if self._best is None else replace(choice, mappings=self._best)

    def _start(self, start: Start, best: Mappings) -> Mappings:
        """The first state of an annealing."""
        if start == "best":
            return best
        alone = dict.fromkeys(best, OperatorMapping(0))
        return alone if start == "alone" else self._laid_out(best) or alone

    def _laid_out(self, now: Mappings) -> Mappings | None:
        """The fastest of some states with branches on devices of their own, possibly slower than
        before. None if nothing forks. Small changes don't lead there: one branch on fewer devices
        gains nothing as long as the others are on all."""
        best, least = None, inf
        for _ in range(LAYOUTS):
            other = self._moves.apart(best or now)
            if other is None or self.is_over():
                break
            taken = self._seconds(other, least)
            if taken is not None and taken < least:
                best, least = other, taken
        return best

    def _turned_over(self, now: Mappings) -> Mappings | None:
        """The state with the last devices in place of the first, if devices are of several kinds.
        Small changes don't lead there."""
        if len(self.chooser.pricing.cost.machine.kinds) == 1:
            return None
        last = self._devices - 1
        return {node: mapping.moved(last - mapping.last) for node, mapping in now.items()}

    def _run(self, start: Mappings, states: int, heat: float) -> None:
        """Anneal over ``states`` states, and keep the best of all."""
        first = self._seconds(start, inf)
        assert first is not None, "a state that is known can be simulated"
        now, seconds, least = start, first, first
        self._keep(now, seconds)
        for turn in range(states):
            if self.is_over():
                break
            warm = least * heat * (COLD / heat) ** (turn / states)
            other = self._moves.moved(now)
            if other == now:
                continue
            taken = self._seconds(other, seconds - warm * log(1.0 - self._random.random()))
            if taken is None:
                continue
            now, seconds = other, taken
            least = min(least, seconds)
            self._keep(now, seconds)

    def _keep(self, state: Mappings, seconds: float) -> None:
        if seconds < self._least:
            self._best, self._least = state, seconds

    def _seconds(self, mappings: Mappings, limit: float) -> float | None:
        state = tuple(mappings.values())
        least, is_exact = self._known.get(state, (0.0, False))
        if least >= limit or is_exact:
            return least if least < limit else None
        taken = (self.price or self.delta.seconds_mapped)(state, limit)
        self._known[state] = (limit, False) if taken is None else (taken, True)
        return taken
