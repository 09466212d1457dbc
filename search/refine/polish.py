"""The last look at a plan of a small graph: changes of an operator or two, as far as one is faster.

Problem: sums of seconds do not tell what overlaps, so that the best of them is not yet the fastest
plan.

Method: a descent over simulated plans (the neighbourhood of FlexFlow's search; Jia et al., MLSys
2019, section 5.2). One operator takes another strategy, or begins at another device; where no such
change is faster, an operator and one that reads it change together. A change whose longest way
through computations is no faster is not simulated, and the others no further than needed
(``delta``).

Complexity: strategies times operators are asked for in a round, and pairs of strategies of few. The
plan is a local optimum of these changes, and no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Generic, Protocol, TypeVar

import numpy as np

from pcg.graph.graph import Graph, Node
from search.map.choose.choosing import Choice, Chooser
from search.map.space.allow import Allowed
from search.map.space.axes import Strategy
from search.map.space.strategies import starts

PAIRS = 256
"""Pairs of strategies of two operators that are few."""


class Priced(Protocol):
    """A plan that was simulated: its choice of strategies, and the seconds of a step."""

    @property
    def choice(self) -> Choice: ...
    @property
    def seconds(self) -> float: ...


P = TypeVar("P", bound=Priced)


class Ways:
    """The ways through the operators of a graph, from one to another that reads it."""

    def __init__(self, graph: Graph) -> None:
        numbers = {node: number for number, node in enumerate(graph.operators)}
        self._before = [
            [numbers[v.node] for v in node.inputs if v.node in numbers] for node in numbers
        ]

    def longest(self, seconds: Sequence[float]) -> float:
        """Of all ways, the longest one's sum. ``seconds``: of each operator, in the order of the
        graph."""
        ends: list[float] = []
        for own, before in zip(seconds, self._before, strict=True):
            ends.append(max([ends[number] for number in before], default=0.0) + own)
        return max(ends, default=0.0)


@dataclass(frozen=True, eq=False)
class _Bound:
    """Seconds that a step takes at least: what waits for each other computes for so long."""

    ways: Ways
    numbers: Mapping[Node, int]
    seconds: Sequence[Sequence[float]]
    """For each operator, those for which it computes by each of its strategies."""
    places: list[int]
    """The strategy of each operator."""

    def changed(self, changes: Mapping[Node, int]) -> float:
        """With other strategies of some operators."""
        own = [seconds[place] for seconds, place in zip(self.seconds, self.places, strict=True)]
        for node, place in changes.items():
            number = self.numbers[node]
            own[number] = self.seconds[number][place]
        return self.ways.longest(own)


@dataclass(eq=False)
class Polisher(Generic[P]):
    """Polishes plans of one graph. ``tried`` simulates a choice and keeps its plan; ``is_faster``
    says whether a step takes less than so many seconds."""

    chooser: Chooser
    graph: Graph
    tried: Callable[[Choice], P]
    is_faster: Callable[[Choice, float], bool]

    def polished(self, best: P, allowed: Allowed) -> P:
        """A plan after changes of one operator's strategy, or of the devices that it runs on, or of
        an operator and one that reads it, as long as one is faster when it is simulated."""
        nodes, spaces = self.graph.operators, self.chooser.spaces
        places = {node: np.flatnonzero(allowed(node, spaces.of(node))).tolist() for node in nodes}
        last = None
        while last is not best:
            last, bound = best, self._bound(best.choice)
            for node in nodes:
                for place in places[node]:
                    if bound.changed({node: place}) < best.seconds:
                        before, strategy = best, spaces.of(node).strategy(place)
                        best = self._begun(best, node, strategy)
                        bound = bound if best is before else self._bound(best.choice)
            if last is best:
                best = self._both_changed(best, bound, places)
        return best

    def _both_changed(self, best: P, bound: _Bound, places: Mapping[Node, Sequence[int]]) -> P:
        """The first faster plan with other strategies of an operator and of one that reads it, if
        there is any, where all of these are few."""
        spaces = self.chooser.spaces
        for reader in self.graph.operators:
            for node in dict.fromkeys(v.node for v in reader.inputs if not v.node.is_leaf):
                if len(places[node]) * len(places[reader]) > PAIRS:
                    continue
                for pair in product(places[node], places[reader]):
                    changes = dict(zip((node, reader), pair, strict=True))
                    if bound.changed(changes) >= best.seconds:
                        continue
                    choice = best.choice
                    for other, place in changes.items():
                        choice = _changed(choice, other, spaces.of(other).strategy(place), 0)
                    if self.is_faster(choice, best.seconds):
                        return self.tried(choice)
        return best

    def _begun(self, best: P, node: Node, strategy: Strategy) -> P:
        """A plan with an operator's strategy from the device on with which it is fastest, if it is
        faster than the best."""
        for start in starts(strategy, self.chooser.mesh):
            choice = _changed(best.choice, node, strategy, start)
            if self.is_faster(choice, best.seconds):
                best = self.tried(choice)
        return best

    def _bound(self, choice: Choice) -> _Bound:
        nodes, spaces = self.graph.operators, self.chooser.spaces
        computing = self.chooser.pricing.computing(self.graph)
        places: list[int] = []
        for node in nodes:
            place = spaces.of(node).place(choice.strategies[node])
            assert place is not None
            places.append(place)
        seconds = [computing[node].tolist() for node in nodes]
        numbers = {node: number for number, node in enumerate(nodes)}
        return _Bound(Ways(self.graph), numbers, seconds, places)


def _changed(choice: Choice, node: Node, strategy: Strategy, start: int) -> Choice:
    """The choice with another strategy of an operator, from some device on."""
    firsts = {**choice.starts, node: start}
    kept = {other: first for other, first in firsts.items() if first}
    return replace(choice, strategies={**choice.strategies, node: strategy}, starts=kept)
