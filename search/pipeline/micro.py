"""The strategies of micro-batches on one group of devices, and their costs.

All micro-batches of a step go through an operator one after the other, and all operators count as
if they ran one after the other. So the sum to be minimized is that of whole graphs, with prices for
one slice of the batch: work for every micro-batch counts as often as there are slices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node, Value
from pcg.machine import Link
from pcg.memo import Memo
from pcg.readings.work import gradient_nodes
from search.cost.collectives import seconds
from search.cost.cost import CostModel
from search.cost.progress import check_time
from search.cost.slices import Slices
from search.map.choose.choosing import least_places
from search.map.choose.costs import PASSING
from search.map.choose.duties import Duties
from search.map.choose.factors import Factor, PairTable, Places
from search.map.choose.pricing import Pricing
from search.map.choose.resharding import Transfers
from search.map.choose.spaces import Spaces
from search.map.choose.tied import TiedVariables
from search.map.rules.cuts import Cuts
from search.map.rules.templates import CutTemplates
from search.map.space.allow import Allowed, Mask, everything
from search.map.space.axes import Mesh, Strategy
from search.map.space.strategies import Space
from search.pipeline.cut_crossings import CrossingSeconds
from search.pipeline.streams import Streams
from search.plan.hand_cuts import by_hand as hand_cuts
from search.plan.hand_cuts import degrees_within_node
from search.split.colours import MOST_FREE

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MicroBatchCosts:
    """The costs of micro-batches: of one operator by its strategies; or of all operators with one
    strategy each, in the order of ``MicroBatches.nodes``."""

    micro: Vector
    """Seconds for one micro-batch, forward and backward; 0 for an operator that runs once a
    step."""
    once: Vector
    """Seconds once a step: exchange and update of weights, and the whole operator if it runs
    once."""
    weights: Vector
    """Bytes of the weights of which it is the first reader, on the fullest device."""
    activations: Vector
    """Bytes that it saves of one micro-batch."""


@dataclass(frozen=True, eq=False)
class GroupStrategies:
    """A strategy by mesh axes for every operator on a group, in the order of ``nodes``."""

    strategies: tuple[Strategy, ...]
    costs: MicroBatchCosts
    """The costs, with the resharding of each operator's operands."""


@dataclass(frozen=True, eq=False)
class MicroResharding:
    """Seconds of the resharding of a tensor from its maker to a reader. ``position``: that of the
    operand at its reader; ``times``: 2 if its gradient moves back, otherwise 1; ``repeated``:
    whether it is done for every micro-batch."""

    value: Value
    position: int
    source: int
    target: int
    seconds: PairTable
    times: float
    repeated: bool


@dataclass(frozen=True, eq=False)
class _ReshardingSum:
    """The seconds of all reshardings, as ``factors`` over the operators or, of a large graph, over
    the operators that are ``tied``. ``sizes``: the strategies of each; ``masks``: the places of
    those that may be used."""

    sizes: Sequence[int]
    masks: Sequence[Places]
    factors: Sequence[Factor]
    tied: TiedVariables | None = None

    def least_places(
        self, alone: Sequence[Factor], known: Sequence[Sequence[int]] = ()
    ) -> list[int]:
        """The places of all operators' strategies with the least sum. ``alone``: the costs of each
        operator by itself; ``known``: places that are considered in any case."""
        own = alone if self.tied is None else self.tied.factors(alone)
        rows = [self._row(places) for places in known]
        given = self.sizes, self.masks, [*own, *self.factors]
        _, places = least_places(*given, known=rows)
        return places if self.tied is None else self.tied.spread(places)

    def _row(self, places: Sequence[int]) -> list[int]:
        """The numbers among ``masks`` of known places. Tied operators take the place of the first
        of them."""
        own = places if self.tied is None else self.tied.firsts(places)
        pairs = zip(self.masks, own, strict=True)
        return [int(np.searchsorted(mask, place)) for mask, place in pairs]


@dataclass(eq=False)
class MicroBatches:
    """Chooses strategies for micro-batches of a model on a group of devices.

    ``cost``: of the machine that the group is; ``slices``: the number of micro-batches of the
    batch. The choice for a large graph is heuristic. So it considers the strategies of data x
    tensor parallelism by hand too, and is no worse than these.
    """

    streams: Streams
    cost: CostModel
    cuts: Cuts
    slices: int
    allowed: Allowed = everything
    """The strategies that may be used."""
    transfers: Transfers | None = None
    """The transfers among the devices of a group, shared with other numbers of slices."""
    pricing: Pricing = field(init=False)
    nodes: tuple[Node, ...] = field(init=False)
    crossing: Memo[tuple[GroupStrategies, Link], CrossingSeconds] = field(
        init=False, default_factory=Memo[tuple[GroupStrategies, Link], CrossingSeconds]
    )
    """The seconds of tensors that cross between stages, by strategies and link."""
    templates: CutTemplates = field(init=False, default_factory=CutTemplates)
    """The operators that were cut for a pipeline, the same in all pipelines of these slices."""
    _choices: Memo[tuple[float, float], GroupStrategies] = field(
        init=False, default_factory=Memo[tuple[float, float], GroupStrategies]
    )
    """The choices by the prices of bytes."""
    _costs: Memo[tuple[int, Duties, tuple[float, ...]], MicroBatchCosts] = field(
        init=False, default_factory=Memo[tuple[int, Duties, tuple[float, ...]], MicroBatchCosts]
    )
    _known: tuple[list[MicroBatchCosts], list[MicroResharding]] | None = field(
        init=False, default=None
    )
    """The tables of all operators, for all prices of memory."""
    _sum: _ReshardingSum | None = field(init=False, default=None)
    _hand: Mapping[tuple[int, ...], GroupStrategies] | None = field(init=False, default=None)
    """The strategies of tensor parallelism by hand by their places, once they were asked for."""

    def __post_init__(self) -> None:
        slices = Slices(self.slices, self.streams.axes)
        spaces = Spaces(Mesh(self.cost.machine), self.cuts, slices, partials_pass=False)
        self.pricing = Pricing(spaces, self.cost, self.transfers)
        self.nodes = self.streams.graph.operators

    @property
    def spaces(self) -> Spaces:
        return self.pricing.spaces

    def choose(self, weight_price: float = 0.0, saved_price: float = 0.0) -> GroupStrategies:
        """The strategies with which all micro-batches of a step take the least time on the group,
        one after the other. ``weight_price`` and ``saved_price``: the cost in seconds of a byte of
        the weights on a device, and of a byte that a device saves of one micro-batch."""
        choice = partial(self._best, weight_price, saved_price)
        return self._choices.get((weight_price, saved_price), choice)

    def _best(self, weight_price: float, saved_price: float) -> GroupStrategies:
        def priced(costs: MicroBatchCosts) -> Vector:
            held = weight_price * costs.weights + saved_price * costs.activations
            return self.slices * costs.micro + costs.once + held

        self._sum = self._sum or self._resharding_sum(self.allowed)
        if len(self.nodes) <= MOST_FREE:
            return self.chosen(self._sum.least_places(self._alone(priced)))
        hand = self._places_by_hand()
        best = self.chosen(self._sum.least_places(self._alone(priced), list(hand)))
        return min([best, *hand.values()], key=lambda own: float(priced(own.costs).sum()))

    def _alone(self, priced: Callable[[MicroBatchCosts], Vector]) -> list[Factor]:
        """The price of each operator by itself, for each of its strategies."""
        costs = self.tables()[0]
        tables = {id(table): table for table in costs}
        prices = {key: priced(table) for key, table in tables.items()}
        return [Factor((i,), prices[id(table)]) for i, table in enumerate(costs)]

    def by_hand(self) -> list[GroupStrategies]:
        """The fastest strategies of data x tensor parallelism with sequence parallelism, for each
        degree within a node that lets the samples of a micro-batch be divided."""
        return list(self._places_by_hand().values())

    def _places_by_hand(self) -> Mapping[tuple[int, ...], GroupStrategies]:
        """The same by the places of the strategies in the operators' spaces."""
        if self._hand is None:
            samples, size = self.streams.batch // self.slices, self.cost.machine.devices
            degrees = [
                degree
                for degree in degrees_within_node(self.spaces.mesh)
                if samples % (size // degree) == 0
            ]
            each = [self._with_degree(degree) for degree in degrees]
            self._hand = {places: self.chosen(places) for places in each}
        return self._hand

    def _with_degree(self, tensor: int) -> tuple[int, ...]:
        """The places of the fastest strategies of tensor parallelism with a degree. Operators that
        depend on no weight, such as a mask, are cut in any way. Among equally fast ones they take
        those with less memory: a byte counts as if it were read once."""
        graph = self.streams.graph
        hand = hand_cuts(graph, self.spaces.of, self.spaces.mesh, tensor, sequence=True)
        trained, allowed = gradient_nodes(graph), self.allowed

        def mask(node: Node, space: Space) -> Mask:
            own = allowed(node, space)
            both = own & hand(node, space) if node in trained else own
            return both if both.any() else own

        each = 1 / self.cost.machine.kinds[0].memory_bandwidth

        def priced(costs: MicroBatchCosts) -> Vector:
            return self.slices * (costs.micro + each * costs.activations) + costs.once

        alone = self._alone(priced)
        return tuple(self._resharding_sum(mask).least_places(alone))

    def chosen(self, places: Sequence[int]) -> GroupStrategies:
        """The strategies at given places of all operators' spaces, with their costs."""
        pairs = zip(self.nodes, places, strict=True)
        strategies = (self.spaces.of(node).strategy(at) for node, at in pairs)
        return GroupStrategies(tuple(strategies), _summed(places, *self.tables()))

    def _resharding_sum(self, allowed: Allowed) -> _ReshardingSum:
        """The part of the sum that is the same for all prices of memory. ``allowed``: the
        strategies that may be used."""
        spaces = [self.spaces.of(node) for node in self.nodes]
        pairs = zip(self.nodes, spaces, strict=True)
        masks = [np.flatnonzero(allowed(node, space)) for node, space in pairs]
        factors: list[Factor] = []
        for resharding in self.tables()[1]:
            times = resharding.times * (self.slices if resharding.repeated else 1)
            factors.append(resharding.seconds.factor(resharding.source, resharding.target, times))
        sizes = [len(own) for own in spaces]
        if len(self.nodes) <= MOST_FREE:
            return _ReshardingSum(sizes, masks, factors)
        colours = self.streams.colours()
        tied = TiedVariables.of([colours[node] for node in self.nodes], masks)
        return _ReshardingSum(tied.sizes(sizes), tied.picked(masks), tied.factors(factors), tied)

    def forget(self) -> None:
        """Drop the tables, which take much memory. They are made again when needed."""
        self._known = self._sum = self._hand = None
        self.crossing.clear()
        self._choices.clear()
        self._costs.clear()
        self.pricing.forget()

    def strategies(self) -> int:
        """The number of strategies of all operators."""
        return sum(len(self.spaces.of(node)) for node in self.nodes)

    def streams_through(self, node: Node) -> bool:
        """Whether an operator works on micro-batches rather than once a step."""
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
        """The mesh axes, as bits, along which devices need the same block of an operand."""
        axes = self.spaces.of(node).axes
        uncut = (e < 0 or axes[e].operands[position] is None for e in strategy)
        return sum(1 << place for place, same in enumerate(uncut) if same)

    def gathering(self, chosen: GroupStrategies) -> Vector:
        """The seconds of gathering the weights of which each operator is the first reader, if their
        copies are stored in parts."""
        spent = np.zeros(len(self.nodes))
        for at, (node, duties) in enumerate(self._duties().items()):
            for position in duties.weights:
                alike = self.alike(node, position, chosen.strategies[at])
                ring = self.spaces.mesh.peers(alike).ring
                spent[at] += seconds(ring, chosen.costs.weights[at] / len(duties.weights))
        return spent

    def tables(self) -> tuple[list[MicroBatchCosts], list[MicroResharding]]:
        """The costs of every operator by itself, and of every resharding between two operators. The
        tables of operators that are alike are one object."""
        self._known = self._known or self._tables()
        return self._known

    def _tables(self) -> tuple[list[MicroBatchCosts], list[MicroResharding]]:
        number = {node: i for i, node in enumerate(self.nodes)}
        costs: list[MicroBatchCosts] = []
        reshardings: list[MicroResharding] = []
        for node, duties in self._duties().items():
            check_time()
            for position, value in enumerate(node.inputs):
                if not value.node.is_leaf:
                    pairs = self.pricing.resharding(value, node, position)
                    ends = number[value.node], number[node]
                    back = 2.0 if position in duties.needs else 1.0
                    repeated = self.streams_through(value.node)
                    given = value, position, *ends, pairs, back, repeated
                    reshardings.append(MicroResharding(*given))
            costs.append(self._costs_of(node, duties))
        return costs, reshardings

    def _duties(self) -> Mapping[Node, Duties]:
        return self.streams.duties(self.cost.training.compiled)

    def _costs_of(self, node: Node, duties: Duties) -> MicroBatchCosts:
        shown = tuple(self.streams.shown(value) for value in (*node.inputs, *node.outputs))
        key = self.spaces.kind(node), duties, shown
        return self._costs.get(key, lambda: self._computed_costs(node, duties, shown))

    def _computed_costs(
        self, node: Node, duties: Duties, shown: Sequence[float]
    ) -> MicroBatchCosts:
        """The costs of an operator. ``shown``: the parts of its operands and results that are held;
        the rest of them repeats these elements in a view."""
        space = self.spaces.of(node)
        task = self.pricing.operator_costs(node, duties.without_weights)
        full = self.pricing.operator_costs(node, duties)
        step = sum(full.exchanges, full.seconds)
        blocks = self._weight_bytes(node)
        held = sum((blocks[at] for at in duties.weights), np.zeros(len(space)))
        # Weights are only read, and are not saved for each micro-batch.
        read = sum(blocks.values(), np.zeros(len(space)))
        repeated = self._repeated_bytes(node, shown)
        activations = np.maximum(task.memory - PASSING * (read + repeated), 0.0)
        if not self.streams_through(node):
            return MicroBatchCosts(np.zeros(len(space)), step, held, activations)
        return MicroBatchCosts(task.seconds, step - task.seconds, held, activations)

    def _repeated_bytes(self, node: Node, shown: Sequence[float]) -> Vector:
        """Bytes on a device of an operator's operands and results that a view repeats, and that
        take no memory."""
        space, task = self.spaces.of(node), self.spaces.slices.task(node)
        degrees = space.degrees(self.spaces.mesh.primes).astype(float)
        total = np.zeros(len(space))
        for number, (value, part) in enumerate(
            zip((*task.inputs, *task.outputs), shown, strict=True)
        ):
            if part < 1.0:
                named = [[*axis.operands, *axis.outputs][number] is not None for axis in space.axes]
                parts = np.where(named, degrees, 1.0).prod(axis=1)
                total += (1 - part) * prod(value.type.block) / parts * self.cost.itemsize
        return total

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
    places: Sequence[int], costs: Sequence[MicroBatchCosts], reshardings: Sequence[MicroResharding]
) -> MicroBatchCosts:
    """The costs of all operators with the strategies at given places."""
    rows = list(zip(costs, places, strict=True))
    micro = np.array([table.micro[at] for table, at in rows])
    once = np.array([table.once[at] for table, at in rows])
    for resharding in reshardings:
        one_way = resharding.seconds.forth[places[resharding.source], places[resharding.target]]
        seconds = micro if resharding.repeated else once
        seconds[resharding.target] += resharding.times * one_way
    weights = np.array([table.weights[at] for table, at in rows])
    return MicroBatchCosts(
        micro, once, weights, np.array([table.activations[at] for table, at in rows])
    )
