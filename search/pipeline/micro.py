"""Strategies of micro-batches on one group of devices, and what they cost.

All micro-batches of a step go through an operator one after the other, and all operators count as
if they ran one after the other. So the sum to be the least is that of whole graphs, with prices for
one slice of the batch: what is done for every micro-batch counts as often as there are slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node, Value
from pcg.machine import Link
from pcg.memo import Memo
from search.cost.cost import CostModel
from search.cost.progress import check_time
from search.cost.slices import Slices
from search.map.choose.choosing import least_places, tied_places
from search.map.choose.costs import PASSING
from search.map.choose.duties import Duties
from search.map.choose.factors import Factor, PairTable, Places
from search.map.choose.pricing import Pricing
from search.map.choose.resharding import Transfers
from search.map.choose.spaces import Spaces
from search.map.rules.cuts import Cuts
from search.map.space.allow import Allowed, everything
from search.map.space.axes import Mesh, Strategy
from search.map.space.strategies import Space
from search.pipeline.balance import CrossingSeconds
from search.pipeline.streams import Streams
from search.split.colours import MOST_FREE

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Costs:
    """What micro-batches cost: of one operator by its strategies, or of one strategy each of all
    operators, in the order of ``MicroBatches.nodes``."""

    micro: Vector
    """Seconds for one micro-batch, forward and backward; 0 for an operator that is run once a
    step."""
    once: Vector
    """Seconds a step: exchange and update of its weights, and all of an operator run once."""
    weights: Vector
    """Bytes of the weights that it is the first to read, on the fullest device."""
    activations: Vector
    """Bytes that it keeps of one micro-batch."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """A strategy for every operator on a group, by mesh axes, in the order of ``nodes``."""

    strategies: tuple[Strategy, ...]
    costs: Costs
    """With the transfers of each operator's operands."""


@dataclass(frozen=True, eq=False)
class MicroResharding:
    """Seconds of a tensor's way from the operator that makes it to one that reads it. ``times``: 2
    where its gradient comes back; ``repeated``: for every micro-batch."""

    source: int
    target: int
    seconds: PairTable
    times: float
    repeated: bool


@dataclass(eq=False)
class MicroBatches:
    """Chooses strategies for micro-batches of a model on a group of devices.

    ``cost`` is of the group's own machine; ``slices`` how many micro-batches the batch is cut into.
    """

    streams: Streams
    cost: CostModel
    cuts: Cuts
    slices: int
    allowed: Allowed = everything
    """Which strategies may be used."""
    transfers: Transfers | None = None
    """Those between the devices of a group, which other numbers of slices share."""
    pricing: Pricing = field(init=False)
    nodes: tuple[Node, ...] = field(init=False)
    crossing: Memo[tuple[Chosen, Link], CrossingSeconds] = field(
        init=False, default_factory=Memo[tuple[Chosen, Link], CrossingSeconds]
    )
    """What tensors take that cross between stages, by strategies and link, for it to be worked out
    once."""
    _costs: Memo[tuple[int, Duties], Costs] = field(
        init=False, default_factory=Memo[tuple[int, Duties], Costs]
    )
    _known: tuple[list[Costs], list[MicroResharding]] | None = field(init=False, default=None)
    """Tables of all operators, which prices of memory share."""

    def __post_init__(self) -> None:
        slices = Slices(self.slices, self.streams.axes)
        spaces = Spaces(Mesh(self.cost.machine), self.cuts, slices, partials_pass=False)
        self.pricing = Pricing(spaces, self.cost, self.transfers)
        self.nodes = self.streams.graph.operators

    @property
    def spaces(self) -> Spaces:
        return self.pricing.spaces

    def choose(self, byte_price: float = 0.0, in_flight: float = 1.0) -> Chosen:
        """The strategies with which all micro-batches of a step take least time on the group, one
        after the other. ``byte_price``: seconds that a byte of memory on a device is taken to
        cost; activations count ``in_flight`` times."""
        spaces = [self.spaces.of(node) for node in self.nodes]
        costs, reshardings = self.tables()
        factors: list[Factor] = []
        for i, own in enumerate(costs):
            held = own.weights + in_flight * own.activations
            factors.append(Factor((i,), self.slices * own.micro + own.once + byte_price * held))
        for one in reshardings:
            times = one.times * (self.slices if one.repeated else 1)
            factors.append(one.seconds.factor(one.source, one.target, times))
        pairs = list(zip(self.nodes, spaces, strict=True))
        masks = [np.flatnonzero(self.allowed(node, own)) for node, own in pairs]
        return self.chosen(self._places(spaces, masks, factors))

    def chosen(self, places: Sequence[int]) -> Chosen:
        """The strategies at some places of all operators' spaces, and what they cost."""
        pairs = zip(self.nodes, places, strict=True)
        strategies = (self.spaces.of(node).strategy(at) for node, at in pairs)
        return Chosen(tuple(strategies), _summed(places, *self.tables()))

    def _places(
        self, spaces: Sequence[Space], masks: Sequence[Places], factors: Sequence[Factor]
    ) -> list[int]:
        """The places of the strategies that together cost least."""
        sizes = [len(own) for own in spaces]
        if len(self.nodes) <= MOST_FREE:
            return least_places(sizes, masks, factors)[1]
        looks = self.pricing.colours(self.streams.graph)
        return tied_places([looks[node] for node in self.nodes], sizes, masks, factors)[1]

    def forget(self) -> None:
        """Let the tables go, which take much memory; they would be made again."""
        self._known = None
        self.crossing.clear()
        self._costs.clear()
        self.pricing.forget()

    def strategies(self) -> int:
        """Of all operators together."""
        return sum(len(self.spaces.of(node)) for node in self.nodes)

    def streams_through(self, node: Node) -> bool:
        """Whether an operator works on micro-batches, and not once a step."""
        return self.spaces.slices.axis(node) is not None

    def block_bytes(
        self, value: Value, node: Node, position: int, strategy: Sequence[int]
    ) -> float:
        """Bytes of one micro-batch of an operand that a device of the group needs."""
        axes, primes = self.spaces.of(node).axes, self.spaces.mesh.primes
        entries = zip(primes, strategy, strict=True)
        parts = prod(p for p, e in entries if e >= 0 and axes[e].operands[position] is not None)
        return self.spaces.slices.elements(value) * self.cost.itemsize / parts

    def alike(self, node: Node, position: int, strategy: Sequence[int]) -> int:
        """The mesh axes, as bits, along which devices of the group need the same of an operand."""
        axes = self.spaces.of(node).axes
        uncut = (e < 0 or axes[e].operands[position] is None for e in strategy)
        return sum(1 << place for place, same in enumerate(uncut) if same)

    def tables(self) -> tuple[list[Costs], list[MicroResharding]]:
        """What every operator costs by itself, and every resharding between two of them. Those of
        operators that are alike are one object."""
        self._known = self._known or self._tables()
        return self._known

    def _tables(self) -> tuple[list[Costs], list[MicroResharding]]:
        graph, number = self.streams.graph, {node: i for i, node in enumerate(self.nodes)}
        costs: list[Costs] = []
        reshardings: list[MicroResharding] = []
        for node, duties in self.pricing.duties(graph, self.nodes, keeps=True).items():
            check_time()
            for position, value in enumerate(node.inputs):
                if not value.node.is_leaf:
                    pairs = self.pricing.resharding(value, node, position)
                    ends = number[value.node], number[node]
                    back = 2.0 if position in duties.needs else 1.0
                    repeated = self.streams_through(value.node)
                    reshardings.append(MicroResharding(*ends, pairs, back, repeated))
            costs.append(self._own_costs(node, duties))
        return costs, reshardings

    def _own_costs(self, node: Node, duties: Duties) -> Costs:
        key = self.spaces.kind(node), duties
        return self._costs.get(key, lambda: self._worked_out(node, duties))

    def _worked_out(self, node: Node, duties: Duties) -> Costs:
        space = self.spaces.of(node)
        task = self.pricing.own(node, duties.without_weights)
        full = self.pricing.own(node, duties)
        step = sum(full.exchanges, full.seconds)
        blocks = self._weight_bytes(node)
        held = sum((blocks[at] for at in duties.weights), np.zeros(len(space)))
        # Weights that are only read pass through no micro-batch.
        read = sum(blocks.values(), np.zeros(len(space)))
        activations = np.maximum(task.memory - PASSING * read, 0.0)
        if not self.streams_through(node):
            return Costs(np.zeros(len(space)), step, held, activations)
        return Costs(task.seconds, step - task.seconds, held, activations)

    def _weight_bytes(self, node: Node) -> Mapping[int, Vector]:
        """Bytes on a device of the weights that an operator reads, by operand."""
        space, task = self.spaces.of(node), self.spaces.slices.task(node)
        degrees = space.degrees(self.spaces.mesh.primes).astype(float)
        blocks: dict[int, Vector] = {}
        for position, value in enumerate(node.inputs):
            if value.node.is_weight:
                named = [axis.operands[position] is not None for axis in space.axes]
                block = prod(task.inputs[position].type.block)
                parts = np.where(named, degrees, 1.0).prod(axis=1)
                blocks[position] = block / parts * self.cost.itemsize
        return blocks


def _summed(
    places: Sequence[int], costs: Sequence[Costs], reshardings: Sequence[MicroResharding]
) -> Costs:
    """What all operators cost by the strategies at some places."""
    rows = list(zip(costs, places, strict=True))
    micro = np.array([own.micro[at] for own, at in rows])
    once = np.array([own.once[at] for own, at in rows])
    for one in reshardings:
        one_way = one.seconds.forth[places[one.source], places[one.target]]
        seconds = micro if one.repeated else once
        seconds[one.target] += one.times * one_way
    weights = np.array([own.weights[at] for own, at in rows])
    return Costs(micro, once, weights, np.array([own.activations[at] for own, at in rows]))
