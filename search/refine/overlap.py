"""Choices of strategies by simulated plans, so that hidden communication does not count.

Problem: find the strategies with which a step takes least time. The sum that ``choosing`` makes
least counts all communication, and only a simulated plan tells how much of it is exposed.

Method: a descent over simulated plans. The sum is made least several times: with all communication
counted, with the exchange of weights' gradients taken to be hidden, with half of the resharding
hidden; then with each weight's exchange counted as far as it was exposed in the fastest plan so
far. Branches of a graph are put side by side where that is faster (``spread``). The plan of a small
graph is polished, operator by operator and pair by pair (``polish``).

A sum counts a tensor's way to each reader, though it is moved once for all that want it in one
layout. From the fastest plan on, sums count once what that plan moves once (``moved_once``).

Each plan's seconds are as the simulation has them. The choice is heuristic: a step that is faster
only after three changes at once is not found. ``at_best`` is the bound that rules graphs out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import inf
from typing import Generic, TypeVar

import numpy as np

from pcg.graph.graph import Graph, Node
from pcg.memo import Memo
from pcg.placement.schedule import Schedule, schedule
from search.cost.derivation import Derivation
from search.cost.events import exposures
from search.cost.progress import Phases
from search.cost.simulate import TimedTasks, run
from search.cost.tasks import SYNC, UPDATE, tasks
from search.cost.unroll import NotAlike, Unrolled, unrolled
from search.map.building import Builder
from search.map.choose.choosing import ALL, Choice, Chooser, Exposed
from search.map.rules.fully_sharded import PlacedGraph
from search.map.rules.templates import CutTemplates
from search.map.space.allow import Allowed, everything
from search.map.space.strategies import IDLE, UNCUT, starts
from search.refine.annealing import Annealer, Stages
from search.refine.delta import DeltaSimulator
from search.refine.polish import Polisher, Ways
from search.refine.spread import Spread, put, sides
from search.split.blocks import blocks_of, repeated

Judged = TypeVar("Judged")

FEW = 2400
"""Strategies of all operators of a graph that is small, each on all devices that it may be on,
times the operators, which are simulated with each: what takes some seconds."""
SIDES = 2
"""How many ways to put branches of a larger graph side by side are simulated in a row without one
that is faster."""
LEAST_SAVED = 1e-2
"""Of the seconds of a step, what such a way has to promise in a larger graph."""

KNOWN = 3
"""So many of the fastest plans so far are starting points of the next choice."""

FIRST = (ALL, Exposed(exchange=0.0, loss=0.0), Exposed(resharding=0.5, loss=0.0))
"""The backward pass waits for no number that only puts the loss together."""
FREE = Exposed(exchange=0.01, resharding=0.01, loss=0.0)
"""Most is cut, and alike, where communication takes hardly any time."""
AT_BEST = Exposed(exchange=0.0, resharding=0.25, loss=0.0)
AGAIN = (1.0, 0.25)
"""How much of resharding counts when exchanges count as far as they were exposed."""


@dataclass(frozen=True)
class Simulated:
    """A plan as it was simulated: what it was made of is large, and not kept."""

    choice: Choice
    cut: PlacedGraph
    steps: Schedule
    weights: Sequence[Node]
    """For each weight of the run, the one that stands for it."""
    run: TimedTasks

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

    chooser: Chooser
    graph: Graph
    before: Derivation
    """What led to the graph."""
    judge: Callable[[Simulated], Judged]
    phases: Phases = field(default_factory=Phases)
    unfit: Callable[[Choice, PlacedGraph, Schedule], Judged | None] | None = None
    """What is of interest about a plan that does not fit, however long it takes; None for one that
    fits. Where memory has a price, only what fits is simulated; all is, where nothing is given."""
    _tried: dict[object, Tried[Judged]] = field(init=False, default_factory=dict)
    _faster: Memo[object, bool] = field(init=False, default_factory=Memo[object, bool])
    """Whether choices take less than so many seconds, of which no plans were kept."""
    _cut: CutTemplates = field(init=False, default_factory=CutTemplates)

    @property
    def builder(self) -> Builder:
        return Builder(self.chooser.spaces)

    @cached_property
    def _delta(self) -> DeltaSimulator:
        return DeltaSimulator.of(self.graph, self.builder, self.chooser.pricing.cost)

    def choices(
        self, price: float, allowed: Allowed, *, brief: bool = False
    ) -> Iterator[Tried[Judged]]:
        """Plans with restricted strategies, the first with no overlap in mind; different ones
        only. ``brief``: fewer are looked for, as with a price of memory, which is varied instead.
        Raises NotAlike where blocks that stand for others come out unlike those next to them.
        """
        brief = brief or price > 0
        plans: dict[Tried[Judged], None] = {}
        for exposed in FIRST[:2] if brief else FIRST:
            plans |= self._alike(price, allowed, exposed)
        if not plans:
            raise NotAlike
        best = min(plans, key=lambda tried: tried.seconds)
        for resharding in () if brief else AGAIN:
            exposed = Exposed(resharding=resharding, loss=0.0, weights=best.exposed)
            plans |= self._alike(price, allowed, exposed)
        if not brief:
            small = self.is_small
            bases = [min(plans, key=lambda tried: tried.seconds)]
            if small and self._allows_uncut(allowed):
                bases.append(self._tried_choice(self._uncut(best.choice)))
            if small:
                bases.append(self._try(price, allowed, FREE))
            plans |= dict.fromkeys(self._improved(tried, allowed, small=small) for tried in bases)
        yield from plans

    def moved_once(self, choice: Choice, allowed: Allowed) -> None:
        """Try plans by sums in which a tensor that several operators read is moved once for them:
        as if all readers wanted one layout, and then those that do in the fastest plan, as long as
        that becomes faster. ``choice``: the fastest before."""
        shared = self.chooser.shared(self.graph)
        best, last = self._tried_choice(choice), None
        while shared and last is not best:
            last = best
            for exchange, weights in ((1.0, {}), (0.0, {}), (1.0, best.exposed)):
                exposed = Exposed(exchange, loss=0.0, weights=weights, shared=shared)
                tried = self._alike(0.0, allowed, exposed)
                best = min((best, *tried), key=lambda own: own.seconds)
            shared = self.chooser.shared(self.graph, best.choice)

    def _alike(self, price: float, allowed: Allowed, exposed: Exposed) -> dict[Tried[Judged], None]:
        """The plan of a choice; none where a block that stands for others comes out unlike those
        next to it."""
        try:
            return {self._try(price, allowed, exposed): None}
        except NotAlike:
            return {}

    @cached_property
    def at_best(self) -> float:
        """Seconds of a step where nearly all communication is hidden, and branches are side by side
        wherever that promises to save time: what a graph is not faster than, by all that is known
        before plans are simulated."""
        return self._at_best(self._choice(0.0, everything, AT_BEST))

    def promised(self, allowed: Allowed) -> float:
        """Seconds of a step by restricted strategies, where nearly all communication is hidden."""
        return self._choice(0.0, allowed, AT_BEST).seconds

    def promised_by(self, choice: Choice) -> float:
        """The same by the strategies of a choice."""
        fixed = choice.strategies
        return self.chooser.choose(self.graph, 0.0, everything, AT_BEST, fixed=fixed).seconds

    def least_work(self) -> float:
        """Seconds of computation of all devices together, with the strategies that take least of
        them: what must be done, on however many devices."""
        primes = np.array(self.chooser.mesh.primes, np.int64)
        seconds = 0.0
        for node, own in self.chooser.pricing.computing(self.graph).items():
            rows = self.chooser.spaces.of(node).strategies
            devices = np.where(rows == IDLE, 1, primes).prod(axis=1)
            seconds += self._times.get(node, 1) * float((own * devices).min())
        return seconds

    @cached_property
    def busy_bound(self) -> float | None:
        """Seconds of a step that no plan of the graph takes less than: those for which all devices
        are busy with what must be done. None for devices of several kinds, of which strategies have
        the seconds of the slowest."""
        machine = self.chooser.mesh.machine
        return self.least_work() / machine.devices if len(machine.kinds) == 1 else None

    def _at_best(self, choice: Choice) -> float:
        saved: dict[frozenset[Node], float] = {}
        start, around = Spread(choice, {}), not self.is_small
        for side in sides(self.chooser, start, everything, AT_BEST, around=around):
            branches = frozenset(node for load in side.loads for node in load)
            often = max(self._times.get(node, 1) for node in branches)
            saved[branches] = max(often * side.saved, saved.get(branches, 0.0))
        return max(choice.seconds - sum(saved.values()), self._least_path())

    def _least_path(self) -> float:
        """Seconds of the operators of a path, each at its fastest: no step is faster."""
        computing = self.chooser.pricing.computing(self.graph)
        often = self._times
        least = [float(computing[n].min()) * often.get(n, 1) for n in self.graph.operators]
        return Ways(self.graph).longest(least)

    @cached_property
    def _times(self) -> Mapping[Node, int]:
        return self.chooser.times(self.graph)

    @cached_property
    def _repeating(self) -> frozenset[Node]:
        """The operators of all blocks, where one of these stands for others."""
        blocks = blocks_of(self.graph) if self.chooser.more else None
        return frozenset[Node]() if blocks is None else blocks.operators

    def _uncut(self, choice: Choice) -> Choice:
        """Everything on one device."""
        idle = (IDLE,) * len(self.chooser.mesh)
        return replace(choice, strategies=dict.fromkeys(choice.strategies, idle))

    @cached_property
    def is_small(self) -> bool:
        """Whether each strategy of each operator can be simulated."""
        nodes = self.graph.operators
        if self.chooser.more:
            return False
        count = 0
        for node in nodes:
            rows = self.chooser.spaces.of(node).strategies.tolist()
            count += sum(len(starts(row, self.chooser.mesh)) for row in rows)
            if count * len(nodes) > FEW:
                return False
        return True

    def _allows_uncut(self, allowed: Allowed) -> bool:
        nodes = self.graph.operators
        return all(allowed(node, self.chooser.spaces.of(node))[UNCUT] for node in nodes)

    def _improved(self, tried: Tried[Judged], allowed: Allowed, *, small: bool) -> Tried[Judged]:
        """A plan with branches side by side where that is faster; of a small graph, with all else
        that is faster and differs in one operator."""
        self.phases.teller.enters("refine")
        if not small:
            return self._side_by_side(tried, allowed, small=False)
        polisher = Polisher(self.chooser, self.graph, self._tried_choice, self._is_faster)
        best = polisher.polished(tried, allowed)
        aside = self._side_by_side(best, allowed, small=True)
        return polisher.polished(aside, allowed) if aside is not best else aside

    def _side_by_side(self, best: Tried[Judged], allowed: Allowed, *, small: bool) -> Tried[Judged]:
        """A plan with branches on devices of their own, as long as one more fork makes it faster
        when it is simulated."""
        spread = Spread(best.choice, {})
        last = None
        while last is not best:
            last, exposed = best, Exposed(loss=0.0, weights=best.exposed)
            least = 0.0 if small else LEAST_SAVED * best.seconds
            # One of many blocks that are alike would be another than those next to it.
            promising = (
                side
                for side in sides(self.chooser, spread, allowed, exposed, around=False)
                if not any(node in self._repeating for load in side.loads for node in load)
            )
            ways = [s for s in promising if s.saved > least][: None if small else SIDES]
            for side, fixed in product(ways, (True, False) if small else (True,)):
                more = put(self.chooser, spread, side, allowed, exposed, fixed=fixed)
                tried = self._tried_choice(more.choice)
                if tried.seconds < best.seconds:
                    best, spread = tried, more
                    break
        return best

    def _is_faster(self, choice: Choice, limit: float) -> bool:
        """Whether a step of the plan of a choice takes less than so many seconds."""
        return self._faster.get((_key(choice), limit), lambda: self._takes_less(choice, limit))

    def _takes_less(self, choice: Choice, limit: float) -> bool:
        less = self.phases.timed("polishing", lambda: self._delta.takes_less(choice, limit))
        return self._made(choice).seconds < limit if less is None else less

    def refined(self, choice: Choice, most: int, stages: Stages) -> Tried[Judged]:
        """A choice for the graph, annealed over any devices of the machine, as far as the same work
        as for so many states of an operator goes."""
        annealer = Annealer(self.chooser, self._delta, lambda: self.phases.is_over, most)
        best = self.phases.timed("refining", lambda: annealer.annealed(choice, stages))
        return self._tried_choice(best)

    def fully_sharded(self, tried: Tried[Judged]) -> Tried[Judged]:
        """The same strategies with weights fully sharded."""
        return self._tried_choice(replace(tried.choice, fully_sharded=True))

    def _try(self, price: float, allowed: Allowed, exposed: Exposed) -> Tried[Judged]:
        choice = self._choice(price, allowed, exposed)
        key = _key(choice)
        if not price or self.unfit is None:
            return self._tried_choice(choice)
        if key not in self._tried:
            cut, steps = self._scheduled(choice)
            judged = self.unfit(choice, cut, steps)
            fits = judged is None
            self._tried[key] = (
                self._simulated(choice, cut, steps) if fits else Tried(choice, inf, {}, judged)
            )
        return self._tried[key]

    def _choice(self, price: float, allowed: Allowed, exposed: Exposed) -> Choice:
        return self.phases.timed(
            "choosing",
            lambda: self.chooser.choose(self.graph, price, allowed, exposed, also=self._known()),
        )

    def _known(self) -> list[Mapping[Node, tuple[int, ...]]]:
        """The strategies of the fastest plans so far, which a search that looks at few must not
        miss."""
        best = sorted(self._tried.values(), key=lambda tried: tried.seconds)[:KNOWN]
        return [tried.choice.strategies for tried in best]

    def _tried_choice(self, choice: Choice) -> Tried[Judged]:
        key = _key(choice)
        if key not in self._tried or self._tried[key].seconds == inf:
            self._tried[key] = self._simulated(choice, *self._scheduled(choice))
        return self._tried[key]

    def _simulated(self, choice: Choice, cut: PlacedGraph, steps: Schedule) -> Tried[Judged]:
        made = self._run_as(choice, cut, steps)
        return Tried(choice, made.seconds, _exposed(made), self.judge(made))

    def _made(self, choice: Choice) -> Simulated:
        return self._run_as(choice, *self._scheduled(choice))

    def _scheduled(self, choice: Choice) -> tuple[PlacedGraph, Schedule]:
        cut = self.phases.timed("building", lambda: self.builder.placed(choice, self._cut))
        return cut, self.phases.timed("scheduling", lambda: schedule(cut.graph, cut.views))

    def _run_as(self, choice: Choice, cut: PlacedGraph, steps: Schedule) -> Simulated:
        whole, done = self.phases.timed("simulating", lambda: self._run(steps))
        return Simulated(choice, cut, steps, whole.weights, done)

    def _run(self, steps: Schedule) -> tuple[Unrolled, TimedTasks]:
        cost = self.chooser.pricing.cost
        whole = unrolled(steps, cost, repeated(self.graph, self.chooser.more))
        return whole, run(tasks(whole.program), cost.machine.devices)


def _key(choice: Choice) -> object:
    """What tells choices for one graph apart."""
    firsts = tuple(choice.starts.get(node, 0) for node in choice.strategies)
    own = tuple(choice.mappings.items())
    return choice.fully_sharded, firsts, own, *choice.strategies.values()


def _exposed(made: Simulated) -> dict[Node, float]:
    """How much of each weight's exchange is exposed, on the first of its devices: the mean over
    those that a weight stands for."""
    exposed: dict[Node, list[float]] = defaultdict(list)
    by_device: dict[int, dict[int, float]] = {}
    for task in made.run.tasks:
        if task.phase == SYNC:
            device = int(task.duration.groups[0, 0])
            if device not in by_device:
                by_device[device] = exposures(made.run, device, SYNC)
            part = by_device[device].get(task.what, 1.0)
            exposed[made.weights[task.what]].append(part)
    return {node: sum(parts) / len(parts) for node, parts in exposed.items()}


def updates(made: TimedTasks) -> float:
    """Seconds for which a device updates weights at most."""
    own = [task.duration for task in made.tasks if task.phase == UPDATE]
    total = np.zeros(1 + max((int(d.groups.max(initial=0)) for d in own), default=0))
    for duration in own:
        total[duration.groups] += duration.seconds[:, None]
    return float(total.max())
