"""Polishing of a plan of a small graph: changes of an operator or two, as long as one is faster.

Problem: sums of seconds don't show what overlaps, so the choice with the best sum is not yet the
fastest plan.

Method: a descent over simulated plans (the neighbourhood of FlexFlow's search; Jia et al., MLSys
2019, section 5.2). One operator takes another strategy, or begins at another device. If no such
change is faster, an operator and one of its readers change together. A change is not simulated if
its longest path of computations is already no faster. Other changes are simulated only as far as
needed (``delta``).

Complexity: in a round, the strategies of all operators are tried, and pairs of strategies where
these are few. The plan is a local optimum of these changes, and no more than that.
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
"""The number of pairs by default."""


class TimedChoice(Protocol):
    """A simulated plan: its choice of strategies, and the seconds of a step."""

    @property
    def choice(self) -> Choice: ...
    @property
    def seconds(self) -> float: ...


P = TypeVar("P", bound=TimedChoice)


class GraphPaths:
    """The paths through the operators of a graph, from an operator to its readers."""

    def __init__(self, graph: Graph) -> None:
        numbers = {node: number for number, node in enumerate(graph.operators)}
        self._before = [
            [numbers[v.node] for v in node.inputs if v.node in numbers] for node in numbers
        ]

    def longest(self, seconds: Sequence[float]) -> float:
        """The largest sum of seconds along a path. ``seconds``: of each operator, in the order of
        the graph."""
        ends: list[float] = []
        for of_operator, before in zip(seconds, self._before, strict=True):
            ends.append(max([ends[number] for number in before], default=0.0) + of_operator)
        return max(ends, default=0.0)


@dataclass(frozen=True, eq=False)
class _Bound:
    """A lower bound of a step: the seconds of computation along the longest path of operators."""

    paths: GraphPaths
    numbers: Mapping[Node, int]
    seconds: Sequence[Sequence[float]]
    """For each operator, its seconds of computation by each of its strategies."""
    places: list[int]
    """The place of each operator's strategy."""

    def changed(self, changes: Mapping[Node, int]) -> float:
        """The bound with other strategies for some operators."""
        chosen_seconds = [
            seconds[place] for seconds, place in zip(self.seconds, self.places, strict=True)
        ]
        for node, place in changes.items():
            number = self.numbers[node]
            chosen_seconds[number] = self.seconds[number][place]
        return self.paths.longest(chosen_seconds)


@dataclass(eq=False)
class Polisher(Generic[P]):
    """Polishes plans of one graph. ``tried`` simulates a choice and keeps its plan. ``is_faster``
    says whether a step takes less than a limit of seconds. ``pairs``: the most pairs of strategies
    of two operators that are tried."""

    chooser: Chooser
    graph: Graph
    tried: Callable[[Choice], P]
    is_faster: Callable[[Choice, float], bool]
    pairs: int = PAIRS

    def polished(self, best: P, allowed: Allowed) -> P:
        """The plan after changes of one operator's strategy or first device, or of an operator and
        one of its readers, as long as the simulated step becomes faster."""
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
                best = self._pair_changed(best, bound, places)
        return best

    def _pair_changed(self, best: P, bound: _Bound, places: Mapping[Node, Sequence[int]]) -> P:
        """The first faster plan with other strategies of an operator and one of its readers, if
        there is one. Only pairs of operators with few strategies are tried."""
        spaces = self.chooser.spaces
        for reader in self.graph.operators:
            for node in dict.fromkeys(v.node for v in reader.inputs if not v.node.is_leaf):
                if len(places[node]) * len(places[reader]) > self.pairs:
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
        """The plan with a strategy of an operator, at the first device with which it is fastest, if
        it is faster than the best."""
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
        return _Bound(GraphPaths(self.graph), numbers, seconds, places)


def _changed(choice: Choice, node: Node, strategy: Strategy, start: int) -> Choice:
    """The choice with another strategy of an operator, beginning at a device."""
    firsts = {**choice.starts, node: start}
    kept = {other: first for other, first in firsts.items() if first}
    return replace(choice, strategies={**choice.strategies, node: strategy}, starts=kept)
