"""Operators that are cut one at a time, as pieces of the programs of many plans.

Problem: plans that differ in the strategy of an operator or two have different graphs from there
on, yet nearly all results for them are the same.

Method: the result of cutting an operator depends on its own strategy and the types of its operands.
If partial sums may pass through, it also depends on the parallel operators behind the makers of its
operands. So the operator is cut on leaves of these types, under these parallel operators. The cut
operator is the same on any devices, and is built by the template of operators that look alike. On
some devices it is a piece: the layouts that it needs and leaves, and its seconds. Cut operators and
pieces are kept by what they depend on.

A piece is exactly like the operator in the whole graph. An operator has no piece if a rule of the
library makes it read other operands than before, or the same in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.memo import Answers
from pcg.placement.layout import (
    Layout,
    default_layout,
    moved_by,
    operand_layout,
    output_layout,
)
from pcg.placement.schedule import home, trace
from pcg.placement.transfer import transfer
from pcg.readings.differentiated import differentiated
from pcg.readings.kernels import kernel_uses
from pcg.readings.work import gradient_nodes
from pcg.types.tensor import ParallelTensor
from search.cost.cost import NOTHING, CostModel, Duration
from search.cost.progress import check_time
from search.map.building import Builder
from search.map.rules.cutting import PlacedAxes
from search.map.rules.templates import CutTemplates
from search.map.space.mapping import OperatorMapping


class WantedOperand(NamedTuple):
    """An operand: the number of its value, and of the slot in which it is wanted."""

    value: int
    slot: int
    home: int | None
    """For a leaf, the slot in which it is stored if no other operator reads it first; else None."""
    is_input: bool
    """Whether it is an input, which is loaded in any layout that is wanted."""


@dataclass(frozen=True, eq=False)
class OperatorPiece:
    """An operator that was cut, as other operators see it."""

    outer: tuple[int, ...]
    """For each output, the number of its value as it is read (``OperatorPieces._outer``)."""
    operands: tuple[WantedOperand, ...]
    results: tuple[int, ...]
    """The slots of its results."""
    forward: Duration
    backward: Duration
    """NOTHING if no gradient passes."""
    passes: bool
    """Whether a gradient passes through the operator."""
    differentiated: tuple[int, ...]
    """The operands that get gradients."""
    late: Duration
    """The part of the backward pass that may come last (``ProgramStep``)."""
    forward_seconds: float
    backward_seconds: float
    """Without the late part."""
    late_seconds: float


class _CutOperator(NamedTuple):
    """An operator that was cut, on any devices."""

    inner: Node
    """The operator on blocks."""
    placed: PlacedAxes
    outer: tuple[int, ...]
    """See ``OperatorPiece``."""
    chains: tuple[tuple[Node, ...], ...]
    """For each operand, the parallel operators through which it is read."""
    differentiated: tuple[int, ...]
    """See ``OperatorPiece``."""


class _PlacedOperator(NamedTuple):
    """An operator that was cut, on some devices. On others of the same kinds, as far apart from
    each other, it differs by the numbers of the devices alone."""

    start: int
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    durations: tuple[Duration, Duration, Duration]
    """Forward, backward, and late: see ``OperatorPiece``."""


_CutKey = tuple[int, tuple[tuple[int, int], ...], tuple[int, ...]]
"""The number of an operator, its cuts (``OperatorMapping.cuts``), and the numbers of its operands
as they are read."""
PieceKey = tuple[int, OperatorMapping, tuple[int, ...]]
"""The number of an operator, its mapping, and the numbers of its operands as they are read."""


@dataclass(eq=False)
class OperatorPieces:
    """The pieces of the operators of a graph. Values and slots are referred to by numbers. A slot
    is a value in a layout."""

    graph: Graph
    builder: Builder
    cost: CostModel
    templates: CutTemplates = field(default_factory=CutTemplates)
    """Those of the operators that were cut before. Graphs with the same spaces may share them."""
    nodes: tuple[Node, ...] = field(init=False)
    """The operators, in order."""
    makes: tuple[tuple[int, ...], ...] = field(init=False)
    """For each operator, its outputs."""
    reads: tuple[tuple[int, ...], ...] = field(init=False)
    """For each operator, its operands."""
    outputs: tuple[int, ...] = field(init=False)
    """The outputs of the graph."""
    is_weight: tuple[bool, ...] = field(init=False)
    """For each value, whether it is a weight."""
    is_trained: list[bool] = field(init=False, default_factory=list[bool])
    """For each slot, whether its value needs a gradient."""
    slots: list[tuple[Value, Layout]] = field(
        init=False, default_factory=list[tuple[Value, Layout]]
    )
    _slots: dict[tuple[Value, Layout], int] = field(
        init=False, default_factory=dict[tuple[Value, Layout], int]
    )
    _outer: list[tuple[Value, Value]] = field(init=False, default_factory=list[tuple[Value, Value]])
    """Values as they are read after a cut, each with the value of the graph for which it stands."""
    _outers: dict[Value, int] = field(init=False, default_factory=dict[Value, int])

    def __post_init__(self) -> None:
        graph = self.graph
        self.nodes = graph.operators
        every = [value for node in graph.nodes for value in node.outputs]
        self._values = {value: number for number, value in enumerate(every)}
        self.is_weight = tuple(value.node.is_weight for value in every)
        self.makes = tuple(tuple(self._values[v] for v in node.outputs) for node in self.nodes)
        self.reads = tuple(tuple(self._values[v] for v in node.inputs) for node in self.nodes)
        self.outputs = tuple(self._values[value] for value in graph.outputs)
        self.makers = {
            value: (number, port)
            for number, values in enumerate(self.makes)
            for port, value in enumerate(values)
        }
        """For each value that an operator makes: that operator, and the port."""
        self.leaves = {
            number: self._read(value, value)
            for value, number in self._values.items()
            if value.node.is_leaf
        }
        """For each leaf, its number as it is read."""
        self._whole = [self._read(_standing_for(v, v.type), v) for v in self._values]
        self._alone = [
            tuple([self.leaves.get(v, self._whole[v]) for v in own]) for own in self.reads
        ]
        self.moves = Answers(self._move)
        """Seconds of moving a tensor from one slot to another, and its gradient back; None if
        nothing moves."""
        self._known, self._kinds = Answers(self._made), Answers(self._kinds_between)
        self._placed: dict[object, _PlacedOperator] = {}
        self._moved = Answers(_moved)
        self._cuts = Answers(self._cut)
        self._wanting = gradient_nodes(graph)
        self._uses = kernel_uses(graph, compiled=self.cost.training.compiled)
        self._needs = self._passed()

    def _passed(self) -> tuple[frozenset[int] | None, ...]:
        """For each operator, the operands that need a gradient; None if no gradient passes."""
        live = set(self.graph.outputs if not self.has_loss else self.graph.outputs[:1])
        needs: list[frozenset[int] | None] = []
        for node in reversed(self.nodes):
            passes = node in self._wanting and not live.isdisjoint(node.outputs)
            if passes:
                live.update(node.inputs)
            places = (i for i, value in enumerate(node.inputs) if value.node in self._wanting)
            needs.append(frozenset(places) if passes else None)
        return tuple(reversed(needs))

    @property
    def has_loss(self) -> bool:
        """Whether the first output is a scalar, at which gradients begin."""
        return not self.graph.outputs[0].type.rank

    def piece(
        self, number: int, mapping: OperatorMapping, reads: tuple[int, ...] | None
    ) -> OperatorPiece | None:
        """The piece of an operator, if it has one. ``reads``: the numbers of its operands as they
        are read; None if no partial sums pass through."""
        return self._known[number, mapping, self._alone[number] if reads is None else reads]

    def _move(self, ends: tuple[int, int]) -> tuple[Duration, Duration] | None:
        # Equal layouts have one number.
        way = transfer(*(self.slots[end][1] for end in ends))
        if way.is_nothing:
            return None
        return self.cost.forward_movement(way), self.cost.movement(way)

    def output(self, value: int, outer: Mapping[int, int]) -> WantedOperand | None:
        """The operand as which a graph leaves an output; None if it is left as it is made."""
        leaf = self.leaves.get(value)
        read, of = self._outer[outer[value] if leaf is None else leaf]
        left = default_layout(read.type)
        if leaf is not None:
            return self._leaf(of, (), left)
        chain = trace(read)[1]
        return WantedOperand(value, self._slot(of, left), None, False) if chain else None

    def _made(self, key: PieceKey) -> OperatorPiece | None:
        check_time()
        number, mapping, operands = key
        cut = self._cuts[number, mapping.cuts, operands]
        if cut is None:
            return None
        alike = number, mapping.axes, operands, self._kinds[mapping.start, mapping.last]
        placed = self._placed.get(alike)
        if placed is None:
            placed = self._placed[alike] = self._place(number, mapping, cut)
        node, by = self.nodes[number], mapping.start - placed.start
        forward, backward, late = (self._moved[whole, by] for whole in placed.durations)
        return OperatorPiece(
            cut.outer,
            tuple([self._wanted(node, cut, placed, i, by) for i in range(len(node.inputs))]),
            tuple([self._slot(v, moved_by(placed.results[v.port], by)) for v in node.outputs]),
            forward,
            backward,
            self._needs[number] is not None,
            cut.differentiated,
            late,
            forward.shortest,
            backward.shortest - late.shortest,
            late.shortest,
        )

    def _place(self, number: int, mapping: OperatorMapping, cut: _CutOperator) -> _PlacedOperator:
        """Place an operator that was cut."""
        node, needs, inner = self.nodes[number], self._needs[number], cut.inner
        view = cut.placed.view(mapping)
        wanted, use = needs or frozenset[int](), self._uses[node]
        forward, backward = self.cost.computation(inner, wanted, view, use)
        if needs is None:
            backward = late = NOTHING
        else:
            late = self.cost.late(inner, wanted, use, backward)
        return _PlacedOperator(
            mapping.start,
            tuple([operand_layout(inner, i, view) for i in range(len(node.inputs))]),
            tuple([output_layout(inner, v.port, view) for v in node.outputs]),
            (forward, backward, late),
        )

    def _kinds_between(self, ends: tuple[int, int]) -> tuple[int, ...]:
        """The kinds of the devices from the first to the last; none if all devices are alike."""
        machine = self.cost.machine
        if len(machine.kinds) == 1:
            return ()
        return tuple(id(machine.device_at(device)) for device in range(ends[0], ends[1] + 1))

    def _cut(self, key: _CutKey) -> _CutOperator | None:
        number, cuts, operands = key
        node, needs = self.nodes[number], self._needs[number]
        reads = tuple(self._outer[operand][0] for operand in operands)
        kind = self.builder.spaces.kind(node), cuts
        outer, inner, placed = self.templates.cut(
            kind, node, reads, lambda alike: self.builder.cut_along(node, alike, cuts)
        )
        made = [trace(value) for value in outer]
        traced = [trace(value) for value in inner.inputs]
        if [source for source, _ in traced] != [trace(value)[0] for value in reads]:
            return None
        if [value for value, _ in made] != list(inner.outputs):
            return None
        back = needs & differentiated(inner) if needs is not None else frozenset[int]()
        return _CutOperator(
            inner,
            placed,
            tuple(self._as_read(*pair) for pair in zip(node.outputs, made, strict=True)),
            tuple(chain for _, chain in traced),
            tuple(sorted(back)),
        )

    def _wanted(
        self, node: Node, cut: _CutOperator, placed: _PlacedOperator, position: int, by: int
    ) -> WantedOperand:
        """An operand of an operator, on devices whose numbers are ``by`` higher than as placed."""
        value, layout = node.inputs[position], moved_by(placed.operands[position], by)
        if value.node.is_leaf:
            return self._leaf(value, cut.chains[position], layout)
        return WantedOperand(self._values[value], self._slot(value, layout), None, False)

    def _leaf(self, value: Value, chain: tuple[Node, ...], wanted: Layout) -> WantedOperand:
        """A leaf as an operand, wanted in a layout after a chain of parallel operators."""
        kept, is_input = home(value, chain, wanted), value.node.leaf.kind == "input"
        own = self._slot(value, kept if is_input else kept.without_halos)
        return WantedOperand(self._values[value], self._slot(value, wanted), own, is_input)

    def _as_read(self, value: Value, made: tuple[Value, tuple[Node, ...]]) -> int:
        """The number of an output as it is read: a leaf in its place, under the parallel operators
        that follow."""
        inner, chain = made
        read = _standing_for(value, inner.type)
        for node in chain:
            read = Value(Node(node.call, (read,)))
        return self._read(read, value)

    def _read(self, read: Value, value: Value) -> int:
        number = self._outers.setdefault(read, len(self._outer))
        if number == len(self._outer):
            self._outer.append((read, value))
        return number

    def _slot(self, value: Value, layout: Layout) -> int:
        key = value, layout
        number = self._slots.setdefault(key, len(self.slots))
        if number == len(self.slots):
            self.slots.append(key)
            self.is_trained.append(value.node in self._wanting)
        return number


def _moved(given: tuple[Duration, int]) -> Duration:
    """A duration on devices whose numbers are higher by some number."""
    whole, by = given
    if whole is NOTHING or not by:
        return whole
    return Duration(whole.groups + by, whole.seconds)


def _standing_for(value: Value, tensor: ParallelTensor) -> Value:
    """A leaf of the given type that stands for a value."""
    name = f"{value.node.digest}.{value.port}"
    return Value(Node(Leaf("tensor", name, tensor.rank, tensor)))
