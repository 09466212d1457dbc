"""Cost of a micro-batch on one group of devices, for every strategy of every operator.

A slice of the batch in time does what one of as many devices does under data parallelism, so that
its work is that of a task of the operator cut by the number of slices (``sliced_types``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Leaf, Node, Value
from pcg.readings.saved import Reads, gradient_parts
from pcg.readings.work import gradient_nodes
from pcg.types.tensor import ParallelTensor
from search.cost.cost import CostModel
from search.cost.liveness import saved_positions
from search.mesh.choose.costs import PASSING, Duties, lengths, own_costs
from search.mesh.choose.engine import MOST_CUT
from search.mesh.choose.factors import Factor, Pairs, least, restricted
from search.mesh.choose.marginals import looked_at
from search.mesh.choose.resharding import Transfers
from search.mesh.rules.cuts import Cuts
from search.mesh.space.allow import Allowed, everything
from search.mesh.space.axes import Mesh, Strategy
from search.mesh.space.strategies import Space, space
from search.pipeline.streams import Streams

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Chosen:
    """A strategy for every operator on a group, by mesh axes, in the order of ``nodes``, and
    what is estimated of it."""

    strategies: tuple[Strategy, ...]
    micro: Vector
    """Seconds of each operator for one micro-batch, forward and backward, with the transfers of
    its operands; 0 for one that is run once a step."""
    once: Vector
    """Seconds a step: exchange and update of its weights, and all of an operator run once."""
    weights: Vector
    """Bytes of the weights that it is the first to read, on the fullest device."""
    activations: Vector
    """Bytes that it keeps of one micro-batch."""


@dataclass(frozen=True, eq=False)
class _Costs:
    """Of each strategy of an operator."""

    micro: Vector
    once: Vector
    weights: Vector
    activations: Vector


@dataclass(frozen=True, eq=False)
class _Resharding:
    """Seconds of a tensor's way from the operator that makes it to one that reads it. ``times``: 2
    where its gradient comes back; ``repeated``: for every micro-batch."""

    source: int
    target: int
    seconds: Pairs
    times: float
    repeated: bool

    def factor(self, times: float) -> Factor:
        return self.seconds.factor(self.source, self.target, times)


@dataclass
class MicroBatches:
    """Chooses strategies for micro-batches of a model on a group of devices.

    ``cost`` is of the group's own machine; ``slices`` how many micro-batches the batch is cut
    into. Operators of equal kind (call, types, sample index) are worked out once.
    """

    streams: Streams
    cost: CostModel
    cuts: Cuts
    slices: int
    allowed: Allowed = everything
    """Which strategies may be used."""
    mesh: Mesh = field(init=False)
    _transfers: Transfers = field(init=False)
    nodes: tuple[Node, ...] = field(init=False)
    _kinds: dict[Node, int] = field(init=False, default_factory=dict[Node, int])
    _spaces: dict[int, Space] = field(init=False, default_factory=dict[int, Space])
    _own: dict[object, _Costs] = field(init=False, default_factory=dict[object, _Costs])
    _reshardings: dict[object, Pairs] = field(init=False, default_factory=dict[object, Pairs])

    def __post_init__(self) -> None:
        self.mesh = Mesh(self.cost.machine)
        self._transfers = Transfers(self.mesh)
        self.nodes = tuple(node for node in self.streams.graph.nodes if not node.is_leaf)
        numbers: dict[object, int] = {}
        for node in self.nodes:
            kind = node.signature, self.axis(node)
            self._kinds[node] = numbers.setdefault(kind, len(numbers))

    def choose(self, byte_price: float = 0.0, in_flight: float = 1.0) -> Chosen:
        """The strategies with which all micro-batches of a step take least time on the group, one
        after the other. ``byte_price``: seconds that a byte of memory on a device is taken to
        cost; activations count ``in_flight`` times."""
        spaces = [self.space(node) for node in self.nodes]
        number = {node: i for i, node in enumerate(self.nodes)}
        own, reshardings = self._tables(number)
        factors = [
            Factor((i,), self._seconds(c.micro, c.once) + byte_price * _held(c, in_flight))
            for i, c in enumerate(own)
        ]
        for resharding in reshardings:
            times = resharding.times * (self.slices if resharding.repeated else 1)
            factors.append(resharding.factor(times))
        places = [
            np.flatnonzero(self.allowed(node, s))
            for node, s in zip(self.nodes, spaces, strict=True)
        ]
        factors = restricted(factors, places)
        some = looked_at([len(few) for few in places], factors)
        _, picked = least([len(few) for few in some], restricted(factors, some))
        rows = [int(places[i][some[i][picked[i]]]) for i in range(len(spaces))]
        return self._chosen(rows, spaces, own, reshardings)

    def _seconds(self, micro: Vector, once: Vector) -> Vector:
        return self.slices * micro + once

    def _chosen(
        self,
        rows: Sequence[int],
        spaces: Sequence[Space],
        own: Sequence[_Costs],
        reshardings: Sequence[_Resharding],
    ) -> Chosen:
        micro = np.array([c.micro[row] for c, row in zip(own, rows, strict=True)])
        once = np.array([c.once[row] for c, row in zip(own, rows, strict=True)])
        for resharding in reshardings:
            one_way = resharding.seconds.forth[rows[resharding.source], rows[resharding.target]]
            seconds = micro if resharding.repeated else once
            seconds[resharding.target] += resharding.times * one_way
        return Chosen(
            tuple(
                tuple(int(c) for c in s.strategies[r]) for s, r in zip(spaces, rows, strict=True)
            ),
            micro,
            once,
            np.array([c.weights[row] for c, row in zip(own, rows, strict=True)]),
            np.array([c.activations[row] for c, row in zip(own, rows, strict=True)]),
        )

    def forget(self) -> None:
        """Let the tables go, which take much memory; they would be made again."""
        self._own.clear()
        self._reshardings.clear()

    def strategies(self) -> int:
        """Of all operators together."""
        return sum(len(self.space(node)) for node in self.nodes)

    def block_bytes(
        self, value: Value, node: Node, position: int, strategy: Sequence[int]
    ) -> float:
        """Bytes of one micro-batch of an operand that a device of the group needs."""
        parts = 1
        for prime, entry in zip(self.mesh.primes, strategy, strict=True):
            if entry >= 0 and self.space(node).axes[entry].operands[position] is not None:
                parts *= prime
        return prod(self._slice_shape(value)) * self.cost.itemsize / parts

    # -- one operator -------------------------------------------------------------------------

    def axis(self, node: Node) -> str | None:
        """The sample index of an operator that works on slices."""
        return self.streams.axes.get(node)

    def space(self, node: Node) -> Space:
        """The strategies of an operator: those of its micro-batches, where it streams."""
        key = self._kinds[node]
        found = self._spaces.get(key)
        if found is None:
            rules, axis = self.cuts.of(node), self.axis(node)
            cuttable = {
                name: n // self.slices if name == axis else n
                for name, n in lengths(node).items()
                if name in rules
            }
            found = self._spaces[key] = space(node, cuttable, self.mesh, MOST_CUT)
        return found

    def _tables(self, number: Mapping[Node, int]) -> tuple[list[_Costs], list[_Resharding]]:
        """What every operator costs by itself, and every resharding between two of them."""
        trained = gradient_nodes(self.streams.graph)
        reads = saved_positions(self.streams.graph)
        parts = gradient_parts(self.streams.graph)
        seen: set[Node] = set()
        own: list[_Costs] = []
        reshardings: list[_Resharding] = []
        for i, node in enumerate(self.nodes):
            needs = frozenset(p for p, value in enumerate(node.inputs) if value.node in trained)
            first: list[int] = []
            for position, value in enumerate(node.inputs):
                if not value.node.is_leaf:
                    tables = self._resharding(value, node, position)
                    back = 2.0 if position in needs else 1.0
                    repeated = self.axis(value.node) is not None
                    reshardings.append(_Resharding(number[value.node], i, tables, back, repeated))
                elif value.node.leaf.kind == "weight" and value.node not in seen:
                    seen.add(value.node)
                    first.append(position)
            added = tuple(parts[node.value(port)] for port in range(len(node.types)))
            duties = Duties(needs, tuple(first), reads.get(node, Reads()), added)
            own.append(self._own_costs(node, duties))
        return own, reshardings

    def _own_costs(self, node: Node, duties: Duties) -> _Costs:
        key = self._kinds[node], duties
        found = self._own.get(key)
        if found is None:
            found = self._own[key] = self._worked_out(node, duties)
        return found

    def _worked_out(self, node: Node, duties: Duties) -> _Costs:
        axis, strategies = self.axis(node), self.space(node)
        one = self._one_slice(node)
        passing = replace(duties, weights=())
        task = own_costs(one, strategies, passing, self.cost, self.mesh)
        full = own_costs(one, strategies, duties, self.cost, self.mesh)
        step = sum(full.exchanges, full.seconds)
        degrees = strategies.degrees(self.mesh.primes).astype(float)
        held = np.zeros(len(strategies))
        kept_once = np.zeros(len(strategies))
        for position, value in enumerate(node.inputs):
            named = [a.operands[position] is not None for a in strategies.axes]
            block = one.inputs[position].type.block
            size = np.prod(block) / np.where(named, degrees, 1.0).prod(axis=1)
            if value.node.is_leaf and value.node.leaf.kind == "weight":
                kept_once += size * self.cost.itemsize
                held += size * self.cost.itemsize * (position in duties.weights)
        # Weights that are only read pass through no micro-batch.
        activations = np.maximum(task.memory - PASSING * kept_once, 0.0)
        if axis is None:
            return _Costs(np.zeros(len(strategies)), step, held, activations)
        return _Costs(task.seconds, step - task.seconds, held, activations)

    def _one_slice(self, node: Node) -> Node:
        """The operator as a task on one slice sees it."""
        types = sliced_types(node, self.axis(node), self.slices)
        return Node(node.call, tuple(_standing_for(t) for t in types))

    def _resharding(self, value: Value, node: Node, position: int) -> Pairs:
        """Seconds one way, for all pairs of strategies."""
        key = (self._kinds[value.node], value.port, self._kinds[node], position)
        found = self._reshardings.get(key)
        if found is None:
            sources = self.space(value.node).output(value.port)
            targets = self.space(node).operand(position)
            volume = prod(self._slice_shape(value)) * self.cost.itemsize
            found = self._transfers.seconds(sources, targets, volume)
            self._reshardings[key] = found
        return found

    def _slice_shape(self, value: Value) -> tuple[int, ...]:
        """Of one micro-batch of what an operator makes."""
        axis, shape = self.axis(value.node), list(value.type.shape)
        if axis is not None:
            ranks = tuple(v.rank for v in value.node.inputs)
            typing = value.node.operator_call.typing(ranks)
            dim = next(a.outputs[value.port] for a in typing.axes if a.name == axis)
            assert dim is not None
            shape[dim] //= self.slices
        return tuple(shape)


def _held(costs: _Costs, in_flight: float) -> Vector:
    return costs.weights + in_flight * costs.activations


def sliced_types(node: Node, axis: str | None, slices: int) -> tuple[ParallelTensor, ...]:
    """The operands' types with a cut in space where there are slices in time: what a task does on
    one slice is the work of one task of these."""
    types = tuple(value.type for value in node.inputs)
    if axis is None or slices == 1:
        return types
    ranks = tuple(t.rank for t in types)
    places = next(a for a in node.operator_call.typing(ranks).axes if a.name == axis).operands
    return tuple(_cut(t, place, slices) for t, place in zip(types, places, strict=True))


def _cut(tensor: ParallelTensor, dim: int | None, slices: int) -> ParallelTensor:
    degrees = tensor.degrees
    if dim is None:
        return replace(tensor, degrees=replace(degrees, copies=degrees.copies * slices))
    dims = tuple(d * slices if i == dim else d for i, d in enumerate(degrees.dims))
    times = tuple(1 if i == dim else t for i, t in enumerate(degrees.slices))
    return replace(tensor, degrees=replace(degrees, dims=dims, slices=times))


def one_slice(node: Node) -> tuple[Node, bool]:
    """A stand-in for an operator of a graph that is sliced, which does what it does for one slice;
    and whether it has slices at all."""
    ranks = tuple(value.rank for value in node.inputs)
    for axis in node.operator_call.typing(ranks).axes:
        for value, dim in zip(node.inputs, axis.operands, strict=True):
            if dim is not None and (slices := value.type.degrees.slices[dim]) > 1:
                types = sliced_types(node, axis.name, slices)
                return Node(node.call, tuple(_standing_for(t) for t in types)), True
    return node, False


def _standing_for(tensor: ParallelTensor) -> Value:
    return Node(Leaf("tensor", "operand", tensor.rank, tensor)).value()
