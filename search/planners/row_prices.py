"""Prices of strategies of a sequence of operators: of a whole graph on all devices, or of
micro-batches on the devices of a stage. Planners of stages choose by these tables alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pcg.graph.graph import Graph, Node
from pcg.memo import Memo
from pcg.readings.work import gradient_nodes
from search.map.choose.choosing import Chooser
from search.map.choose.factors import Factor, Places
from search.map.space.strategies import IDLE, Space
from search.pipeline.micro import MicroBatchCosts, MicroBatches
from search.pipeline.stage_memory import PLAIN, Sparing


@dataclass(frozen=True, eq=False)
class TensorTransfer:
    """Seconds of the resharding between two operators, which are given by number. ``repeated``:
    whether it is done for every micro-batch."""

    factor: Factor
    repeated: bool = True


@dataclass(frozen=True)
class StageChoice:
    """Strategies of the operators of a stage, as places in their spaces, with their costs."""

    places: tuple[int, ...]
    micro: float
    """Seconds of a micro-batch, forward and backward."""
    once: float
    """Seconds once a step."""
    weights: float
    """Bytes on the fullest device, with gradients and optimizer states."""
    activations: float
    """Bytes that one micro-batch holds."""

    def seconds(self, sparing: Sparing, slices: int) -> float:
        """Seconds of one micro-batch, with its part of the work once a step."""
        return self.micro * sparing.time + self.once / slices

    def held(self, sparing: Sparing, in_flight: int) -> float:
        """Bytes with ``in_flight`` micro-batches under way."""
        return self.weights / sparing.parts + in_flight * sparing.left * self.activations


@dataclass(frozen=True, eq=False)
class RowPrices:
    """The ``costs`` of each operator, and the reshardings between two operators (``transfers``),
    for each of ``slices`` micro-batches. ``colours``: equal for operators that look alike."""

    nodes: Sequence[Node]
    spaces: Sequence[Space]
    colours: Sequence[int]
    costs: Sequence[MicroBatchCosts]
    transfers: Sequence[TensorTransfer]
    slices: int = 1

    @staticmethod
    def of_batches(batches: MicroBatches) -> RowPrices:
        """The prices of micro-batches on the devices of a stage."""
        costs, moved = batches.tables()
        wide = batches.cost.training.held_bytes / batches.cost.itemsize
        known = Memo[int, MicroBatchCosts]()
        whole = [known.get(id(c), lambda c=c: replace(c, weights=c.weights * wide)) for c in costs]
        transfers = [
            TensorTransfer(m.seconds.factor(m.source, m.target, m.times), m.repeated) for m in moved
        ]
        colours = batches.pricing.colours(batches.streams.graph)
        spaces = [batches.spaces.of(node) for node in batches.nodes]
        numbers = [colours[node] for node in batches.nodes]
        return RowPrices(batches.nodes, spaces, numbers, whole, transfers, batches.slices)

    @staticmethod
    def of_graph(graph: Graph, chooser: Chooser) -> RowPrices:
        """The prices of a whole graph on all devices. All that it holds counts as activations."""
        prices, pricing = chooser.prices(graph), chooser.pricing
        ends = _ends(graph, chooser)
        duties = pricing.duties(graph, prices.nodes, keeps=True)
        costs: list[MicroBatchCosts] = []
        for node in prices.nodes:
            seconds = prices.alone[node] + ends.get(node, 0.0)
            held = pricing.operator_costs(node, duties[node])
            nothing = np.zeros(len(seconds))
            costs.append(MicroBatchCosts(seconds, nothing, nothing, held.memory))
        colours, spaces = pricing.colours(graph), [chooser.spaces.of(node) for node in prices.nodes]
        numbers = [colours[node] for node in prices.nodes]
        transfers = [TensorTransfer(factor) for factor in prices.resharding]
        return RowPrices(prices.nodes, spaces, numbers, costs, transfers)

    def factors(self, first: int, last: int, sparing: Sparing = PLAIN) -> list[Factor]:
        """The terms of the seconds of a micro-batch through the operators from ``first`` to before
        ``last``, with its part of the work once a step. Variables count from ``first`` on."""
        own = [
            Factor((i,), each.micro * sparing.time + each.once / self.slices)
            for i, each in enumerate(self.costs[first:last])
        ]
        for transfer in self._within(first, last):
            a, b = transfer.factor.variables
            times = transfer.factor.times * (1.0 if transfer.repeated else 1 / self.slices)
            own.append(Factor((a - first, b - first), transfer.factor.values, times))
        return own

    def held(self, first: int, last: int, in_flight: int, sparing: Sparing) -> list[np.ndarray]:
        """Bytes that each strategy of some operators holds, with micro-batches under way."""
        return [
            each.weights / sparing.parts + in_flight * sparing.left * each.activations
            for each in self.costs[first:last]
        ]

    def choice(self, first: int, last: int, places: Sequence[int]) -> StageChoice:
        """The costs of some operators with the strategies at given places."""
        sums = np.zeros(4)
        for each, at in zip(self.costs[first:last], places, strict=True):
            sums += each.micro[at], each.once[at], each.weights[at], each.activations[at]
        for transfer in self._within(first, last):
            a, b = transfer.factor.variables
            taken = transfer.factor.times * float(
                transfer.factor.values[places[a - first], places[b - first]]
            )
            sums[0 if transfer.repeated else 1] += taken
        return StageChoice(tuple(places), *map(float, sums))

    def content(self, first: int, last: int) -> object:
        """A key that is equal for sequences with the same tables, as long as these prices live."""
        moved = (
            (
                tuple(v - first for v in transfer.factor.variables),
                transfer.factor.table,
                transfer.repeated,
            )
            for transfer in self._within(first, last)
        )
        return tuple(id(own) for own in self.costs[first:last]), tuple(moved)

    def _within(self, first: int, last: int) -> Iterator[TensorTransfer]:
        for at in range(first, last):
            yield from (
                transfer for transfer in self._into[at] if transfer.factor.variables[0] >= first
            )

    @cached_property
    def _into(self) -> Mapping[int, Sequence[TensorTransfer]]:
        into: dict[int, list[TensorTransfer]] = defaultdict(list)
        for transfer in self.transfers:
            into[transfer.factor.variables[1]].append(transfer)
        return into


def logical_masks(spaces: Sequence[Space], split: int) -> list[Places]:
    """The strategies of operators on a logical mesh of two axes: the mesh axes before ``split``,
    and the others. Each logical axis cuts one index or copies."""
    known: dict[int, Places] = {}
    return [known.setdefault(id(own), _logical(own, split)) for own in spaces]


def _logical(space: Space, split: int) -> Places:
    rows = space.strategies
    alike = np.ones(len(rows), bool)
    for part in (rows[:, :split], rows[:, split:]):
        alike &= (part == part[:, :1]).all(axis=1)
    return np.flatnonzero(alike & (rows != IDLE).all(axis=1))


def _ends(graph: Graph, chooser: Chooser) -> dict[Node, np.ndarray]:
    """The cost of bringing the outputs to one device, and their gradients back."""
    trained, ends = gradient_nodes(graph), dict[Node, np.ndarray]()
    for value in graph.outputs:
        if not value.node.is_leaf:
            times = 2.0 if value.type.rank and value.node in trained else 1.0
            own = times * chooser.pricing.gathering(value)
            ends[value.node] = ends.get(value.node, 0.0) + own
    return ends
