"""Annealing of a whole plan under its simulation: any operator on any devices.

Problem: choose the cuts of every operator, the array of devices on which it runs, and the order in
which operators are issued, so that a simulated step takes least time. Meshes can express halves and
thirds of a machine. Branches of unequal work, or devices of two speeds, may want 5 of 8 devices and
3 of 8. The order decides what a device does while it waits.

Method: simulated annealing (Kirkpatrick et al., Science 1983; over plans: Jia et al., MLSys 2019,
section 5), with changes of operators that are connected (``moves``). It first searches widely: from
the known plan, from all operators on one device, and from branches on devices of their own. Then it
searches near the fastest plan. Metropolis' rule draws its threshold before a state is simulated, so
most states are ruled out by a bound or by a part of their simulation (``delta``).

Complexity: up to ``STATES`` states for each operator are tried, and up to ``WORK`` operators in all
states together. The same seed gives the same plan. A heuristic: no proof says what is fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from pcg.graph.graph import Node
from search.map.choose.choosing import Choice, Chooser
from search.map.space.mapping import OperatorMapping
from search.refine.delta import DeltaSimulator
from search.refine.mappings import PlanState
from search.refine.moves import BROAD, FINE, Moves, Shares
from search.refine.native.annealing import (
    ASKS,
    BEST,
    ENDED,
    GOES_ON,
    HAS_BEST,
    HEAT,
    IS_DRAWN,
    LAST_HEAT,
    LEAST,
    LIMIT,
    MISSES,
    NEEDS_ROOM,
    NOW,
    TURN,
    TURNS,
    decide,
    keep,
    walk,
    walk_on,
)
from search.refine.native.mappings import ISSUED
from search.refine.native.moves import lay_apart
from search.refine.native.tables import Numbers

Start = Literal["best", "alone", "apart"]
"""The start of an annealing: the best plan so far, all operators on one device, or the best plan
with branches on devices of their own."""
WORK = 2_200_000
"""The most operators of all states that are tried, added up."""
STATES = 4200
"""The most states that are tried for each operator. They are enough for a small graph."""
Price = Callable[[PlanState, float], float | None]
"""A function from a state and a limit to the seconds of its step; None if they are no less than the
limit."""


class Stage(NamedTuple):
    """An annealing. ``part``: its fraction of the work; ``heat``: its first temperature as a
    fraction of the seconds of a step; ``shares``: the kinds of its changes."""

    part: float
    heat: float
    start: Start
    shares: Shares = BROAD


Stages = tuple[Stage, ...]
"""Annealings in order."""
WIDELY: Stages = (
    Stage(0.2, 0.03, "best"),
    Stage(0.2, 0.03, "alone"),
    Stage(0.15, 0.03, "apart"),
    Stage(0.15, 0.02, "best", FINE),
    Stage(0.1, 0.01, "best", FINE),
)
"""The last two stages end near the best state of the others: what is ahead after the wide ones need
not be ahead in the end."""
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
AT_ONCE = 64
"""The states that are tried before the time is looked at again."""


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
    begins: Sequence[Node] = ()
    """The operators at which changes begin; by default all."""

    def __post_init__(self) -> None:
        self._graph, self._known = self.delta.graph.graph, self.delta.states.mappings
        self._devices = self.chooser.pricing.cost.machine.devices
        given = self._graph, self.chooser.spaces, self._devices, self._known, self.seed
        self._moves = Moves(*given, only_orders=self.delta.by_class)
        if self.begins:
            self._moves.begin_at(self.begins)
        self._walk = walk(len(self._graph.operators), is_asked=self.price is not None)
        self._asked: dict[bytes, tuple[float, bool]] = {}
        """Seconds of states by ``price``: a lower bound, or exact (True). A fifth of all states
        occur again."""

    def load(self) -> None:
        """Compile the machine code of a walk, or load it."""
        walk_on(*self.delta.tables(), self._moves.tables, self._walk, 0)

    def annealed(self, choice: Choice, stages: Stages = WIDELY + NEARBY) -> Choice:
        """Return the best choice that is found, or ``choice`` if none is faster."""
        nodes, best = self._graph.operators, self.delta.encoded(choice)
        if self.price is None and choice.fully_sharded:
            return choice
        seconds = self._seconds(best, inf)
        if seconds == inf:
            return choice
        self._walk.seconds[BEST], self._walk.numbers[HAS_BEST] = seconds, False
        for stage in stages:
            states = int(stage.part * min(self.work / len(nodes), STATES * len(nodes)))
            if not states:
                continue
            heat = stage.heat * max(1.0, FEW / len(nodes))
            self._run(self._start(stage.start, best), states, heat, stage.shares)
            best = self._best(best)
            self._try_turned_over(best)
            best = self._best(best)
        return self.so_far(choice)

    def _best(self, first: Numbers) -> Numbers:
        """The best state so far. ``first``: the one before all others."""
        return self._walk.best.copy() if self._walk.numbers[HAS_BEST] else first

    @property
    def best(self) -> tuple[PlanState | None, float]:
        """The best state so far, None if nothing is faster than the start, and its seconds."""
        if not self._walk.numbers[HAS_BEST]:
            return None, self.least
        return self._known.decoded(self._walk.best), self.least

    @property
    def least(self) -> float:
        """Seconds of the best state so far."""
        return float(self._walk.seconds[BEST])

    def take_over(self, best: tuple[PlanState | None, float]) -> None:
        """Take over the best state of another annealing of the same choice."""
        state, seconds = best
        if state is not None:
            self._enter(self._known.encoded(state), seconds)
        else:
            self._walk.seconds[BEST] = min(seconds, self._walk.seconds[BEST])

    def so_far(self, choice: Choice) -> Choice:
        """The best choice that was found until now, also by an annealing that was interrupted.
        ``choice``: where it began, which is returned if nothing is faster."""
        state, _ = self.best
        return choice if state is None else state.chosen(choice)

    def _start(self, start: Start, best: Numbers) -> Numbers:
        """The first state of an annealing."""
        if start == "best":
            return best
        alone = self._mapped_anew(best, [OperatorMapping(0)] * best.shape[1])
        if start == "alone":
            return alone
        apart = self._laid_out(best)
        return alone if apart is None else apart

    def _laid_out(self, now: Numbers) -> Numbers | None:
        """The fastest of some states with branches on devices of their own, possibly slower than
        before. None if nothing forks. Small changes don't lead there: one branch on fewer devices
        gains nothing as long as the others are on all."""
        best, least, other = None, inf, np.zeros_like(now)
        for _ in range(LAYOUTS):
            self._moves.make_room()
            given = now if best is None else best
            if not lay_apart(self._moves.tables, self._known.table, given, other) or self.is_over():
                break
            seconds = self._seconds(other, least)
            if seconds < least:
                best, least = other.copy(), seconds
        return best

    def _try_turned_over(self, now: Numbers) -> None:
        """Keep the state with the last devices in place of the first, if devices are of several
        kinds and it is faster. Small changes don't lead there."""
        if len(self.chooser.pricing.cost.machine.kinds) == 1:
            return
        last = self._devices - 1
        before = self._known.decoded(now).mappings
        turned = [mapping.moved(last - mapping.last) for mapping in before]
        other, least = self._mapped_anew(now, turned), self.least
        seconds = self._seconds(other, least)
        if seconds < least:
            self._enter(other, seconds)

    def _mapped_anew(self, state: Numbers, mappings: Sequence[OperatorMapping]) -> Numbers:
        """A state with other mappings, in the same order of issue."""
        order = tuple(state[ISSUED].tolist())
        return self._known.encoded(PlanState(tuple(mappings), order))

    def _run(self, start: Numbers, states: int, heat: float, shares: Shares) -> None:
        """Anneal over ``states`` states, and keep the best of all."""
        walk, seconds = self._walk, self._seconds(start, inf)
        assert seconds < inf, "a state that is known can be simulated"
        walk.seconds[LEAST], walk.seconds[HEAT], walk.seconds[LAST_HEAT] = inf, heat, COLD
        walk.numbers[TURN], walk.numbers[TURNS], walk.numbers[IS_DRAWN] = 0, states, False
        walk.shares[:] = shares
        self._enter(start, seconds)
        waits = GOES_ON
        while waits != ENDED and not self.is_over():
            waits = walk_on(*self.delta.tables(), self._moves.tables, walk, AT_ONCE)
            if waits == MISSES:
                self.delta.add_missing()
            elif waits == NEEDS_ROOM:
                self._moves.make_room()
                self.delta.states.make_room()
            elif waits == ASKS:
                decide(walk, self._seconds(walk.other, float(walk.seconds[LIMIT])))

    def _enter(self, state: Numbers, seconds: float) -> None:
        """Make a state the present one."""
        self._walk.now[:], self._walk.seconds[NOW] = state, seconds
        keep(self._walk)

    def _seconds(self, state: Numbers, limit: float) -> float:
        """Seconds of a state; inf if they are no less than ``limit`` or not known."""
        if self.price is None:
            seconds = self.delta.seconds_of(state, limit)
            return inf if seconds < 0.0 else seconds
        key = state.tobytes()
        least, is_exact = self._asked.get(key, (0.0, False))
        if least < limit and not is_exact:
            taken = self.price(self._known.decoded(state), limit)
            least, is_exact = (limit, False) if taken is None else (taken, True)
            self._asked[key] = least, is_exact
        return least if is_exact and least < limit else inf


@dataclass
class Lane:
    """An annealing among several, from a choice through stages."""

    annealer: Annealer
    choice: Choice
    stages: Stages

    def run(self) -> None:
        self.annealer.annealed(self.choice, self.stages)

    @property
    def best(self) -> Choice:
        """The best choice that was found until now."""
        return self.annealer.so_far(self.choice)

    @property
    def result(self) -> tuple[PlanState | None, float]:
        """The best state and its seconds."""
        return self.annealer.best

    def take_over(self, result: tuple[PlanState | None, float]) -> None:
        """Take over the best state of the same annealing in another process."""
        self.annealer.take_over(result)
