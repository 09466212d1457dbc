"""Choices of strategies by simulated plans, in which hidden communication does not count.

Problem: find the strategies with the least time of a step. The sum that ``choosing`` minimizes
counts all communication. Only a simulated plan tells how much of it is exposed.

Method: a descent over simulated plans. The sum is minimized several times: with all communication
counted; with the exchange of weights' gradients taken as hidden; with half of the resharding
hidden; then with each weight's exchange counted as far as it was exposed in the fastest plan so
far. Branches of a graph are put side by side where that is faster (``spread``). The plan of a small
graph is polished, operator by operator and pair by pair (``polish``).

A sum counts the resharding of a tensor for each reader, though it is moved once for all readers
that want it in one layout. Starting from the fastest plan, sums then count once what that plan
moves once (``moved_once``).

The seconds of each plan are those of its simulation. The choice is heuristic: a step that is faster
only after three changes at once is not found. ``at_best`` is the bound that rules graphs out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import inf
from typing import Generic

import numpy as np

from pcg.graph.graph import Graph, Node
from pcg.memo import Memo
from pcg.placement.schedule import Schedule
from search.cost.derivation import Derivation
from search.cost.progress import Phases
from search.cost.simulate import TimedTasks, run
from search.cost.tasks import tasks
from search.cost.unroll import NotAlike, Unrolled, unrolled
from search.map.building import Builder, Cut
from search.map.choose.choosing import ALL, Choice, Chooser, Exposed
from search.map.rules.fully_sharded import PlacedGraph
from search.map.space.allow import Allowed, everything
from search.map.space.strategies import IDLE, UNCUT, starts
from search.refine.annealing import Annealer, Price, Stages
from search.refine.delta import DeltaSimulator
from search.refine.polish import GraphPaths, Polisher
from search.refine.rows import TableRows
from search.refine.spread import Spread, branch_loads, put_side_by_side
from search.refine.tried import Judged, SimulatedChoice, Tried
from search.split.blocks import blocks_of, repeated

FEW = 2400
"""A graph is small if its strategies, each with all its starts, times its operators are at most
this many. Simulating all of them takes some seconds."""
SIDES = 2
"""In a larger graph, the simulations in a row without a gain after which no more layouts of
branches side by side are tried."""
LEAST_SAVED = 1e-2
"""The least promised gain of such a layout in a larger graph, as a fraction of a step."""

MOST_KNOWN = 3
"""The number of the fastest plans so far that the next choice considers in any case."""

FIRST = (ALL, Exposed(exchange=0.0, loss=0.0))
"""The first settings. Only one counts the reduction of the loss, for which the backward pass does
not wait."""
HALF_RESHARDED = Exposed(resharding=0.5, loss=0.0)
FREE = Exposed(exchange=0.01, resharding=0.01, loss=0.0)
"""Communication that takes hardly any time. Most operators are then cut, and alike."""
AT_BEST = Exposed(exchange=0.0, resharding=0.25, loss=0.0)
AGAIN = (1.0, 0.25)
"""The fractions of resharding that count once exchanges count as far as they were exposed."""


@dataclass(eq=False)
class Trial(Generic[Judged]):
    """Tries choices of strategies for one graph, simulating and judging each different one once."""

    chooser: Chooser
    graph: Graph
    before: Derivation
    """The derivation of the graph."""
    judge: Callable[[SimulatedChoice], Judged]
    phases: Phases = field(default_factory=Phases)
    unfit: Callable[[Choice, PlacedGraph, Schedule], Judged | None] | None = None
    """The judgement of a plan that does not fit in memory, however long its step is; None for a
    plan that fits. If it is given, only plans that fit are simulated where memory has a price."""
    rows: TableRows | None = None
    """What is known of plans of graphs with the same chooser."""
    _tried: dict[object, Tried[Judged]] = field(init=False, default_factory=dict)
    _faster: Memo[object, bool] = field(init=False, default_factory=Memo[object, bool])
    """Whether choices take less than a limit of seconds. Their plans were not kept."""
    _counted: Memo[Allowed, Choice] = field(init=False, default_factory=Memo[Allowed, Choice])
    """The choices with all communication counted, by what was allowed."""

    @property
    def builder(self) -> Builder:
        return Builder(self.chooser.spaces)

    def cut(self, choice: Choice, before: Derivation) -> Cut:
        """The graph of a choice with its derivation. ``before``: that of the choice's graph."""
        return self.builder.cut(choice, before)

    @cached_property
    def delta(self) -> DeltaSimulator:
        """The simulator of the plans of the graph."""
        return DeltaSimulator.of(self.graph, self.builder, self.chooser.pricing.cost, self.rows)

    def first(self, price: float, allowed: Allowed) -> list[Tried[Judged]]:
        """The plans of two choices by restricted strategies: one with all communication counted,
        one with the exchange of weights hidden. ``price``: of a byte of memory. Raises NotAlike if
        blocks that stand for others come out different."""
        plans: dict[Tried[Judged], None] = {}
        for exposed in FIRST:
            plans |= self._alike(price, allowed, exposed)
        if not plans:
            raise NotAlike
        return list(plans)

    def further(self, first: Sequence[Tried[Judged]], allowed: Allowed) -> list[Tried[Judged]]:
        """The first plans, and those by all other settings, with changes that make the fastest one
        faster. Memory has no price."""
        plans = dict.fromkeys(first) | self._alike(0.0, allowed, HALF_RESHARDED)
        best = min(plans, key=lambda tried: tried.seconds)
        for resharding in AGAIN:
            exposed = Exposed(resharding=resharding, loss=0.0, weights=best.exposed)
            plans |= self._alike(0.0, allowed, exposed)
        small = self.is_small
        bases = [min(plans, key=lambda tried: tried.seconds)]
        if small and self._allows_uncut(allowed):
            bases.append(self.tried_choice(self._uncut(best.choice)))
        if small:
            bases.append(self._try(0.0, allowed, FREE))
        plans |= dict.fromkeys(self._improved(tried, allowed, small=small) for tried in bases)
        return list(plans)

    def moved_once(self, choice: Choice, allowed: Allowed, *, brief: bool) -> None:
        """Try plans by sums in which a tensor is moved once for several readers. First as if all
        readers of a tensor wanted one layout, then for those that do in the fastest plan, as long
        as this becomes faster. ``choice``: that of the fastest plan before; ``brief``: whether the
        exposed exchange of each weight is left out."""
        shared = self.chooser.shared(self.graph)
        best, last = self.tried_choice(choice), None
        while shared and last is not best:
            last = best
            settings = [(1.0, {}), (0.0, {}), (1.0, best.exposed)]
            for exchange, weights in settings[:2] if brief else settings:
                exposed = Exposed(exchange, loss=0.0, weights=weights, shared=shared)
                tried = self._alike(0.0, allowed, exposed)
                best = min((best, *tried), key=lambda plan: plan.seconds)
            shared = self.chooser.shared(self.graph, best.choice)

    def _alike(self, price: float, allowed: Allowed, exposed: Exposed) -> dict[Tried[Judged], None]:
        """The plan of a choice. Empty if a block that stands for others comes out different from
        those next to it."""
        try:
            return {self._try(price, allowed, exposed): None}
        except NotAlike:
            return {}

    @cached_property
    def at_best(self) -> float:
        """Seconds of a step with nearly all communication hidden, and with branches side by side
        wherever that promises to save time. It serves as the bound of a graph before plans are
        simulated."""
        return self._at_best(self._choice(0.0, everything, AT_BEST))

    def promised(self, allowed: Allowed) -> float:
        """Seconds of a step by restricted strategies, with nearly all communication hidden."""
        return self._choice(0.0, allowed, AT_BEST).seconds

    def promised_by(self, choice: Choice) -> float:
        """Seconds of a step by the strategies of a choice, with nearly all communication hidden."""
        fixed = choice.strategies
        return self.chooser.choose(self.graph, 0.0, everything, AT_BEST, fixed=fixed).seconds

    def least_work(self) -> float:
        """Seconds of computation of all devices together, with the strategies for which these are
        least. On any number of devices, at least this work must be done."""
        primes = np.array(self.chooser.mesh.primes, np.int64)
        seconds = 0.0
        for node, of_strategies in self.chooser.pricing.computing(self.graph).items():
            rows = self.chooser.spaces.of(node).strategies
            devices = np.where(rows == IDLE, 1, primes).prod(axis=1)
            seconds += self._times.get(node, 1) * float((of_strategies * devices).min())
        return seconds

    @cached_property
    def busy_bound(self) -> float | None:
        """A lower bound of the seconds of a step of any plan of the graph: the least work, spread
        over all devices. None for devices of several kinds, where strategies are priced by the
        slowest kind."""
        machine = self.chooser.mesh.machine
        return self.least_work() / machine.devices if len(machine.kinds) == 1 else None

    def _at_best(self, choice: Choice) -> float:
        saved: dict[frozenset[Node], float] = {}
        start, around = Spread(choice, {}), not self.is_small
        for side in branch_loads(self.chooser, start, everything, AT_BEST, around=around):
            branches = frozenset(node for load in side.loads for node in load)
            often = max(self._times.get(node, 1) for node in branches)
            saved[branches] = max(often * side.saved, saved.get(branches, 0.0))
        return max(choice.seconds - sum(saved.values()), self._least_path())

    def _least_path(self) -> float:
        """Seconds of the longest path of operators, each at its fastest. No step is faster."""
        computing = self.chooser.pricing.computing(self.graph)
        often = self._times
        least = [float(computing[n].min()) * often.get(n, 1) for n in self.graph.operators]
        return GraphPaths(self.graph).longest(least)

    @cached_property
    def _times(self) -> Mapping[Node, int]:
        return self.chooser.times(self.graph)

    @cached_property
    def _repeating(self) -> frozenset[Node]:
        """The operators of all blocks, if one of the blocks stands for others."""
        blocks = blocks_of(self.graph) if self.chooser.more else None
        return frozenset[Node]() if blocks is None else blocks.operators

    def _uncut(self, choice: Choice) -> Choice:
        """The choice with all operators on one device."""
        idle = (IDLE,) * len(self.chooser.mesh)
        return replace(choice, strategies=dict.fromkeys(choice.strategies, idle))

    @cached_property
    def is_small(self) -> bool:
        """Whether all strategies of all operators can be simulated."""
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
        """A plan with branches side by side where that is faster. For a small graph, also with any
        faster change of one operator or two."""
        self.phases.teller.enters("refine")
        if not small:
            return self._side_by_side(tried, allowed, small=False)
        polisher = Polisher(self.chooser, self.graph, self.tried_choice, self.is_faster)
        best = polisher.polished(tried, allowed)
        aside = self._side_by_side(best, allowed, small=True)
        return polisher.polished(aside, allowed) if aside is not best else aside

    def _side_by_side(self, best: Tried[Judged], allowed: Allowed, *, small: bool) -> Tried[Judged]:
        """A plan with branches on devices of their own, as long as one more fork makes the
        simulated step faster."""
        spread = Spread(best.choice, {})
        last = None
        while last is not best:
            last, exposed = best, Exposed(loss=0.0, weights=best.exposed)
            least = 0.0 if small else LEAST_SAVED * best.seconds
            # One block of many that are alike must not become different from those next to it.
            promising = (
                side
                for side in branch_loads(self.chooser, spread, allowed, exposed, around=False)
                if not any(node in self._repeating for load in side.loads for node in load)
            )
            ways = [s for s in promising if s.saved > least][: None if small else SIDES]
            for side, fixed in product(ways, (True, False) if small else (True,)):
                more = put_side_by_side(self.chooser, spread, side, allowed, exposed, fixed=fixed)
                tried = self.tried_choice(more.choice)
                if tried.seconds < best.seconds:
                    best, spread = tried, more
                    break
        return best

    def is_faster(self, choice: Choice, limit: float) -> bool:
        """Whether a step of the plan of a choice takes less than ``limit`` seconds."""
        return self._faster.get((_key(choice), limit), lambda: self._takes_less(choice, limit))

    def _takes_less(self, choice: Choice, limit: float) -> bool:
        less = self.phases.timed("polishing", lambda: self.delta.takes_less(choice, limit))
        return self._made(choice).seconds < limit if less is None else less

    def annealer(
        self, most: int, seed: int = 0, price: Price | None = None, *, by_class: bool = False
    ) -> Annealer:
        """An annealing of the graph over any devices of the machine. ``most``: the most operators
        of all states that are tried, added up; ``price``: that of a state; ``by_class``: see
        ``DeltaSimulator``."""
        delta = self.delta.by_classes if by_class else self.delta
        given = self.chooser, delta, lambda: self.phases.is_over, most, seed
        return Annealer(*given, price=price)

    def refined(
        self,
        choice: Choice,
        most: int,
        stages: Stages,
        price: Price | None = None,
        *,
        by_class: bool = False,
    ) -> Tried[Judged]:
        """A choice for the graph, annealed (see ``annealer``)."""
        annealer = self.annealer(most, price=price, by_class=by_class)
        try:
            annealer.annealed(choice, stages)
        finally:
            tried = self.tried_late(annealer.so_far(choice))
        return tried

    def tried_late(self, choice: Choice) -> Tried[Judged]:
        """The plan of a choice, also if time is just up or the user interrupted the search."""
        with self.phases.later():
            return self.tried_choice(choice)

    def fully_sharded(self, tried: Tried[Judged]) -> Tried[Judged]:
        """The plan of the same strategies with weights fully sharded."""
        return self.tried_choice(replace(tried.choice, fully_sharded=True))

    def _try(self, price: float, allowed: Allowed, exposed: Exposed) -> Tried[Judged]:
        choice = self._choice(price, allowed, exposed)
        key = _key(choice)
        if not price or self.unfit is None:
            return self.tried_choice(choice)
        if key not in self._tried:
            cut, steps = self._scheduled(choice)
            judged = self.unfit(choice, cut, steps)
            fits = judged is None
            self._tried[key] = (
                self._simulated(choice, cut, steps) if fits else Tried(choice, inf, {}, judged)
            )
        return self._tried[key]

    def counted(self, allowed: Allowed) -> Choice:
        """The choice by restricted strategies, with all communication counted."""
        return self._counted.get(allowed, lambda: self._chosen(0.0, allowed, ALL))

    def _choice(self, price: float, allowed: Allowed, exposed: Exposed) -> Choice:
        is_plain = exposed is ALL and not price
        return self.counted(allowed) if is_plain else self._chosen(price, allowed, exposed)

    def _chosen(self, price: float, allowed: Allowed, exposed: Exposed) -> Choice:
        return self.phases.timed(
            "choosing",
            lambda: self.chooser.choose(self.graph, price, allowed, exposed, also=self._known()),
        )

    def _known(self) -> list[Mapping[Node, tuple[int, ...]]]:
        """The strategies of the fastest plans so far. A search that considers few strategies must
        not miss these."""
        best = sorted(self._tried.values(), key=lambda tried: tried.seconds)[:MOST_KNOWN]
        return [tried.choice.strategies for tried in best]

    def tried_choice(self, choice: Choice) -> Tried[Judged]:
        key = _key(choice)
        if key not in self._tried or self._tried[key].seconds == inf:
            self._tried[key] = self._simulated(choice, *self._scheduled(choice))
        return self._tried[key]

    def _simulated(self, choice: Choice, cut: PlacedGraph, steps: Schedule) -> Tried[Judged]:
        made = self._run_as(choice, cut, steps)
        return Tried(choice, made.seconds, made.exposed(), self.judge(made))

    def _made(self, choice: Choice) -> SimulatedChoice:
        return self._run_as(choice, *self._scheduled(choice))

    def _scheduled(self, choice: Choice) -> tuple[PlacedGraph, Schedule]:
        cut = self.phases.timed("building", lambda: self.builder.placed(choice))
        return cut, self.phases.timed("scheduling", lambda: cut.schedule())

    def _run_as(self, choice: Choice, cut: PlacedGraph, steps: Schedule) -> SimulatedChoice:
        whole, done = self.phases.timed("simulating", lambda: self._run(steps))
        return SimulatedChoice(choice, cut, steps, whole.weights, done)

    def _run(self, steps: Schedule) -> tuple[Unrolled, TimedTasks]:
        cost = self.chooser.pricing.cost
        whole = unrolled(steps, cost, repeated(self.graph, self.chooser.more))
        return whole, run(tasks(whole.program), cost.machine.devices)


def _key(choice: Choice) -> object:
    """A key that tells choices for one graph apart."""
    firsts = tuple(choice.starts.get(node, 0) for node in choice.strategies)
    mappings = tuple(choice.mappings.items())
    sharded = choice.fully_sharded, choice.kept_whole
    return sharded, firsts, mappings, choice.order, *choice.strategies.values()
