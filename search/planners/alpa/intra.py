"""Strategies within a stage: Alpa's integer program on the prices of micro-batches.

Problem: for some operators in a row, on one sub-mesh, the strategies with which a micro-batch takes
least time and the stage fits.

Method: the devices of a sub-mesh are a logical mesh of two axes, each of which cuts one index of an
operator or copies it (Zheng et al., OSDI 2022, section 4.1); all shapes of it are tried. For each,
``ilp`` chooses. What is done once a step, such as the exchange of gradients, counts to each
micro-batch in equal parts. Memory is asked for only where the fastest choice does not fit. Stages
of equal content are solved once.

Deviations: element-wise operators are not merged into others; in a stage of more than ``MOST_FREE``
operators, those that look alike are cut alike (``search.map.choose.tied``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from pcg.graph.graph import Graph, Node
from pcg.memo import Memo
from pcg.readings.work import gradient_nodes
from search.map.choose.choosing import Choice, Chooser
from search.map.choose.factors import Factor, Places, restricted
from search.map.choose.tied import Tied
from search.map.space.strategies import IDLE, Space
from search.pipeline.micro import MicroBatches, MicroResharding
from search.pipeline.outline import PLAIN, Sparing
from search.planners.alpa.ilp import Held, Solution, Vector, solve

MOST_FREE = 60
"""Operators of a stage that are chosen one by one."""
SOLVER_SECONDS = 20.0
"""For one integer program, where its relaxation is not enough."""


@dataclass
class Tally:
    """How integer programs went: how many had an answer, for how many of these it was that of the
    linear relaxation, the largest gap between both, and the largest that the solver left open."""

    solved: int = 0
    integral: int = 0
    relaxation_gap: float = 0.0
    open_gap: float = 0.0

    def add(self, one: Solution) -> None:
        self.solved += 1
        self.integral += one.is_relaxed
        self.relaxation_gap = max(self.relaxation_gap, one.relaxation_gap)
        self.open_gap = max(self.open_gap, one.gap)


@dataclass(frozen=True)
class StageChoice:
    """Strategies of the operators of a stage, by their places in the spaces."""

    places: tuple[int, ...]
    micro: float
    """Seconds of a micro-batch, forward and backward."""
    once: float
    """Seconds of what is done once a step."""
    weights: float
    """Bytes on the fullest device, with gradients and the optimizer's states."""
    activations: float
    """Bytes that one micro-batch holds."""

    def seconds(self, sparing: Sparing, slices: int) -> float:
        """Of one micro-batch, with its part of what is done once."""
        return self.micro * sparing.time + self.once / slices

    def held(self, sparing: Sparing, in_flight: int) -> float:
        """Bytes with so many micro-batches under way."""
        return self.weights / sparing.parts + in_flight * sparing.left * self.activations


@dataclass
class StageChoices:
    """The strategies of stages on one sub-mesh with one number of micro-batches. ``limit``: bytes
    that a device has."""

    batches: MicroBatches
    limit: float
    tally: Tally
    _known: Memo[object, StageChoice | None] = field(
        init=False, default_factory=Memo[object, "StageChoice | None"]
    )
    _into: dict[int, list[MicroResharding]] = field(init=False)

    def __post_init__(self) -> None:
        self._into = defaultdict(list)
        for one in self.batches.tables()[1]:
            self._into[one.target].append(one)

    def best(
        self, first: int, last: int, in_flight: int, sparing: Sparing = PLAIN
    ) -> StageChoice | None:
        """Of the operators from one to before another; None where nothing fits."""
        content = self._content(first, last)
        free = self._known.get(content, lambda: self._solved(first, last, None, PLAIN))
        if free is None or free.held(sparing, in_flight) <= self.limit:
            return free
        key = content, in_flight, sparing
        return self._known.get(key, lambda: self._solved(first, last, in_flight, sparing))

    def _content(self, first: int, last: int) -> object:
        costs = self.batches.tables()[0]
        moved = (
            (one.source - first, one.target - first, id(one.seconds), one.times, one.repeated)
            for one in self._moved(first, last)
        )
        return tuple(id(own) for own in costs[first:last]), tuple(moved)

    def _moved(self, first: int, last: int) -> Iterator[MicroResharding]:
        for at in range(first, last):
            yield from (one for one in self._into[at] if one.source >= first)

    def _solved(
        self, first: int, last: int, in_flight: int | None, sparing: Sparing
    ) -> StageChoice | None:
        batches = self.batches
        nodes, costs = batches.nodes[first:last], batches.tables()[0][first:last]
        spaces = [batches.spaces.of(node) for node in nodes]
        factors = [
            Factor((i,), own.micro * sparing.time + own.once / batches.slices)
            for i, own in enumerate(costs)
        ]
        for one in self._moved(first, last):
            times = one.times * (1.0 if one.repeated else 1 / batches.slices)
            factors.append(one.seconds.factor(one.source - first, one.target - first, times))
        wide = batches.cost.training.held_bytes / batches.cost.itemsize
        held = [
            own.weights * wide / sparing.parts + (in_flight or 0) * sparing.left * own.activations
            for own in costs
        ]
        looks = batches.pricing.colours(batches.streams.graph)
        limits = None if in_flight is None else Held(held, self.limit)
        own = [looks[node] for node in nodes]
        places = best_places(spaces, own, factors, limits, self.tally)
        return None if places is None else self._choice(first, last, places, wide)

    def _choice(self, first: int, last: int, places: Sequence[int], wide: float) -> StageChoice:
        micro = once = weights = activations = 0.0
        for own, at in zip(self.batches.tables()[0][first:last], places, strict=True):
            micro, once = micro + own.micro[at], once + own.once[at]
            weights = weights + own.weights[at] * wide
            activations = activations + own.activations[at]
        for one in self._moved(first, last):
            pair = places[one.source - first], places[one.target - first]
            taken = one.times * float(one.seconds.forth[pair])
            micro, once = (micro + taken, once) if one.repeated else (micro, once + taken)
        return StageChoice(tuple(places), micro, once, weights, activations)


def best_places(
    spaces: Sequence[Space],
    looks: Sequence[int],
    factors: Sequence[Factor],
    held: Held | None,
    tally: Tally,
) -> list[int] | None:
    """The places of the strategies that together take least, on the best logical mesh; None where
    none fits. ``looks``: equal numbers for operators that look alike."""
    axes = spaces[0].strategies.shape[1]
    best, places, least = None, None, inf
    for split in range(max(axes, 1)):
        masks = logical_masks(spaces, split)
        colours = looks if len(spaces) > MOST_FREE else range(len(spaces))
        tied = Tied.of(colours, masks)
        some = tied.picked(masks)
        within = restricted(factors, masks)
        bytes_held = None if held is None else _tied_bytes(tied, held, masks)
        sizes = [len(mask) for mask in some]
        found = solve(sizes, tied.factors(within), bytes_held, least, SOLVER_SECONDS)
        if found is not None:
            best, least = found, found.seconds
            chosen = tied.spread(found.places)
            places = [int(mask[at]) for mask, at in zip(masks, chosen, strict=True)]
    if best is not None:
        tally.add(best)
    return places


def logical_masks(spaces: Sequence[Space], split: int) -> list[Places]:
    """The strategies of operators on a logical mesh of two axes, the mesh axes before ``split`` and
    those from there on: each cuts one index or copies."""
    known: dict[int, Places] = {}
    return [known.setdefault(id(own), _logical(own, split)) for own in spaces]


def _logical(space: Space, split: int) -> Places:
    rows = space.strategies
    alike = np.ones(len(rows), bool)
    for part in (rows[:, :split], rows[:, split:]):
        alike &= (part == part[:, :1]).all(axis=1)
    return np.flatnonzero(alike & (rows != IDLE).all(axis=1))


def _tied_bytes(tied: Tied, held: Held, masks: Sequence[Places]) -> Held:
    """What the values of each group hold together."""
    sums: list[Vector] = []
    for members in tied.members:
        mask = masks[members[0]]
        sums.append(np.sum([held.bytes[v][mask] for v in members], axis=0))
    return Held(sums, held.limit)


def whole_mesh(graph: Graph, chooser: Chooser, limit: float | None, tally: Tally) -> Choice | None:
    """The strategies of a whole graph on all devices, without a pipeline; None where none fits.
    ``limit``: bytes that a device has, where that counts."""
    prices, pricing = chooser.prices(graph), chooser.pricing
    number = {node: i for i, node in enumerate(prices.nodes)}
    spaces = [chooser.spaces.of(node) for node in prices.nodes]
    factors = [Factor((number[node],), own) for node, own in prices.alone.items()]
    factors += [*prices.resharding, *_ends(graph, chooser, number)]
    held = None
    if limit is not None:
        duties = pricing.duties(graph, prices.nodes, keeps=True)
        held = Held([pricing.own(node, own).memory for node, own in duties.items()], limit)
    looks = pricing.colours(graph)
    places = best_places(spaces, [looks[n] for n in prices.nodes], factors, held, tally)
    if places is None:
        return None
    rows = zip(prices.nodes, spaces, places, strict=True)
    return Choice(graph, {node: own.strategy(at) for node, own, at in rows}, 0.0)


def _ends(graph: Graph, chooser: Chooser, number: dict[Node, int]) -> Iterator[Factor]:
    """What it takes to bring the outputs to one device, and their gradients back."""
    trained = gradient_nodes(graph)
    for value in graph.outputs:
        if value.node in number:
            times = 2.0 if value.type.rank and value.node in trained else 1.0
            yield Factor((number[value.node],), chooser.pricing.gathering(value), times)
