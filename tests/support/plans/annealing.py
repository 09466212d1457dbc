"""Simulated annealing over plans, independent of the search, to judge its plans by.

A state has, for each operator, a cut of any two of its indices into any numbers of pieces that
divide them, copies, and an array of devices for these: from any first device, with any strides. The
graphs are the model's and one that random rewrites of the library lead to. A move gives an operator
another mapping, or the mapping of a neighbour as far as it has such axes, or moves an operator or a
connected set of operators to other devices. Acceptance is by Metropolis, and the temperature falls
geometrically (Kirkpatrick et al., Science 1983; Jia et al., MLSys 2019, section 5). Delta
simulation prices each state; full simulation of its plan prices the best one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log
from random import Random
from time import process_time

from pcg.graph.graph import Graph, Node
from pcg.placement.schedule import schedule
from search.cost.simulate import simulate
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.space.mapping import MappedAxis, OperatorMapping
from search.map.space.strategies import REPLICATE, passes
from search.refine.delta import DeltaSimulator

HOT, COLD = 0.05, 2e-4
"""The first and the last temperature of an annealing, relative to the seconds of its first
state."""
ROUNDS = 4000
"""The number of states that an annealing visits, if there is time."""
STRIDED = 0.2
"""The share of arrays whose devices are not consecutive."""

Mapped = Mapping[Node, OperatorMapping]


@dataclass
class Annealing:
    """Annealing of the plans of one graph."""

    chooser: Chooser
    graph: Graph
    random: Random

    def __post_init__(self) -> None:
        self._builder = Builder(self.chooser.spaces)
        self._delta = DeltaSimulator.of(self.graph, self._builder, self.chooser.pricing.cost)
        self._devices = self.chooser.pricing.cost.machine.devices
        nodes = self.graph.operators
        self._beside: dict[Node, list[Node]] = {node: [] for node in nodes}
        for node in nodes:
            for other in {value.node for value in node.inputs} & set(nodes):
                self._beside[node].append(other)
                self._beside[other].append(node)
        self.states, self.rounds = 0, ROUNDS

    def annealed(self, start: Mapped, until: float) -> tuple[float, Mapped]:
        """The best state of one annealing, and its full simulation. ``until``: the CPU second at
        which the annealing ends."""
        now = best = dict(start)
        seconds = least = self._seconds(now, inf) or inf
        for turn in range(self.rounds):
            if process_time() > until:
                break
            heat = seconds * HOT * (COLD / HOT) ** (turn / self.rounds)
            other = self._moved(now)
            limit = seconds - heat * log(1.0 - self.random.random())
            taken = None if other == now else self._seconds(other, limit)
            self.states += 1
            if taken is not None:
                now, seconds = other, taken
                if seconds < least:
                    best, least = now, seconds
        return self.simulated(best), best

    def simulated(self, mapped: Mapped) -> float:
        """Seconds of a step of a plan, by full simulation."""
        cut = self._builder.cut(self._choice(mapped))
        return simulate(schedule(cut.graph, cut.views), self.chooser.pricing.cost).step_seconds

    def alone(self) -> Mapped:
        """The mapping of all operators to the last device."""
        return dict.fromkeys(self.graph.operators, OperatorMapping(self._devices - 1))

    def at_random(self) -> Mapped:
        return {node: self._any(node) for node in self.graph.operators}

    def _seconds(self, mapped: Mapped, limit: float) -> float | None:
        return self._delta.seconds(self._choice(mapped), limit)

    def _choice(self, mapped: Mapped) -> Choice:
        return Choice(self.graph, dict.fromkeys(mapped, ()), 0.0, mappings=mapped)

    def _moved(self, now: Mapped) -> dict[Node, OperatorMapping]:
        random, nodes = self.random, self.graph.operators
        node, kind = random.choice(nodes), random.random()
        if kind < 0.45:
            return {**now, node: self._any(node)}
        if kind < 0.7:
            like = now[random.choice(self._beside[node])] if self._beside[node] else now[node]
            return {**now, node: self._on(node, like)}
        if kind < 0.8:
            return {**now, node: self._begun(now[node], random.randrange(self._devices))}
        start, some = random.randrange(self._devices), self._together(node)
        moved = {one: self._begun(now[one], start) for one in some}
        return {**now, **moved}

    def _together(self, node: Node) -> set[Node]:
        some = {node}
        for _ in range(self.random.randint(1, 6)):
            some.add(self.random.choice(self._beside[self.random.choice([*some])] or [node]))
        return some

    def _begun(self, mapping: OperatorMapping, start: int) -> OperatorMapping:
        extent = mapping.last - mapping.start
        return mapping.moved(min(start, self._devices - 1 - extent))

    def _on(self, node: Node, like: OperatorMapping) -> OperatorMapping:
        """An operator on the devices of another, cut along any of its axes that fit."""
        axes: list[MappedAxis] = []
        free = list(range(len(self.chooser.spaces.of(node).axes)))
        for axis in like.axes:
            places = [at for at in free if self._fits(node, at, axis.degree)]
            place = self.random.choice([*places, *places, REPLICATE])
            axes.append(axis._replace(place=place))
            free = [at for at in free if at != place]
        return self._checked(OperatorMapping(like.start, tuple(axes)), node)

    def _any(self, node: Node) -> OperatorMapping:
        """A random mapping."""
        random, space = self.random, self.chooser.spaces.of(node)
        places = [*range(len(space.axes)), REPLICATE]
        cut = random.sample(places, min(len(places), random.choice((0, 1, 1, 1, 2, 2))))
        axes: list[tuple[int, int]] = []
        left = self._devices
        for place in cut:
            degrees = [
                d for d in range(2, left + 1) if place == REPLICATE or self._fits(node, place, d)
            ]
            if degrees:
                axes.append((place, random.choice(degrees)))
                left //= axes[-1][1]
        made = OperatorMapping.packed(0, axes)
        if axes and random.random() < STRIDED:
            times = random.randint(1, max(1, self._devices // made.size))
            made = OperatorMapping(0, tuple(a._replace(stride=a.stride * times) for a in made.axes))
        if made.last >= self._devices:
            made = OperatorMapping.packed(0, axes)
        return self._checked(made.moved(random.randrange(self._devices - made.last)), node)

    def _checked(self, made: OperatorMapping, node: Node) -> OperatorMapping:
        """The mapping, or one device if copies and partial sums meet."""
        space = self.chooser.spaces.of(node)
        through = any(at >= 0 and passes(space.axes[at]) for at in made.places)
        kept = [axis.place for axis in made.axes]
        if len(set(kept)) < len(kept) or (through and REPLICATE in kept):
            return OperatorMapping(made.start)
        return made

    def _fits(self, node: Node, place: int, degree: int) -> bool:
        return self.chooser.spaces.fits(node, place, degree)


@dataclass(frozen=True)
class Annealed:
    """The best state of annealings of one or more graphs. ``graph``: the graph of the best plan.
    ``mapped``: its mappings."""

    seconds: float
    graph: int
    mapped: Mapped
    runs: int
    states: int


def best_of(
    choosers: Sequence[tuple[Chooser, Graph]], start: Mapped | None, seed: int, seconds: float
) -> Annealed:
    """The best plan of annealings within so many CPU seconds, in turn for each graph. They begin
    with a plan of the first graph if one is given, with one device, and with random states. Each
    round takes twice as long as the one before."""
    random, until = Random(seed), process_time() + seconds
    best, graph = inf, 0
    mapped: Mapped = {}
    annealings = [Annealing(chooser, graph, random) for chooser, graph in choosers]
    runs = 0
    while process_time() < until:
        for number, own in enumerate(annealings):
            given = start if own is annealings[0] and start is not None else own.alone()
            turn = runs // len(annealings)
            begin = (given, own.alone(), own.at_random())[turn % 3]
            own.rounds = ROUNDS << turn // 3
            taken, made = own.annealed(begin, until)
            if taken < best:
                best, graph, mapped = taken, number, made
            runs += 1
    return Annealed(best, graph, mapped, runs, sum(own.states for own in annealings))
