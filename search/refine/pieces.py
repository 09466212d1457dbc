"""Operators that are cut one at a time, as pieces of the programs of many plans.

Problem: plans that differ in the strategy of an operator or two have different graphs from there
on, yet nearly all results for them are the same. So are those for operators that look alike, in one
graph or in a rewritten one.

Method: the result of cutting an operator depends on its kind, its own strategy and the types of its
operands. If partial sums may pass through, it also depends on the parallel operators behind the
makers of its operands. So the operator is cut on leaves of these types, under these parallel
operators. The cut operator is the same on any devices. On some devices it is a piece: the layouts
that it needs and leaves, and its seconds. On others of the same kinds, as far apart from each
other, the piece differs by the numbers of the devices alone. Cut operators and pieces are kept by
what they depend on.

A piece is exactly like the operator in the whole graph. An operator has no piece if a rule of the
library makes it read other operands than before, or the same in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pcg.graph.graph import Leaf, LeafKind, Node, Value
from pcg.memo import Answers, Numbering
from pcg.placement.in_parts import layout_of_sums
from pcg.placement.layout import (
    Layout,
    default_layout,
    operand_layout,
    output_layout,
)
from pcg.placement.schedule import home, trace
from pcg.placement.transfer import transfer
from pcg.readings.differentiated import differentiated
from pcg.readings.kernel_use import KernelUse
from pcg.types.operator import Call
from pcg.types.tensor import ParallelTensor
from search.cost.cost import NOTHING, CostModel, Duration
from search.cost.progress import check_time
from search.map.building import Builder
from search.map.rules.cutting import PlacedAxes
from search.map.space.mapping import OperatorMapping
from search.refine.layouts import NumberedLayouts


@dataclass(frozen=True)
class OperatorKind:
    """All that a piece of an operator depends on, besides its mapping and what it reads. ``node``:
    an operator of this kind."""

    node: Node = field(compare=False)
    space: int
    """The number of its kind (``Spaces.kind``)."""
    needs: frozenset[int] | None
    """The operands that need a gradient; None if no gradient passes."""
    use: KernelUse
    leaves: tuple[LeafKind | None, ...]
    """For each operand, the kind of leaf that it is, or None."""
    same: tuple[int, ...]
    """For each operand, the first one that is the same value."""
    is_left: tuple[bool, ...]
    """For each result, whether it is an output of the graph."""


class ReadForm(NamedTuple):
    """A value as it is read after a cut: a source of some type, and the parallel operators through
    which it is read."""

    source: ParallelTensor
    chain: tuple[Call, ...]


class WantedOperand(NamedTuple):
    """An operand: the number of the layout in which it is wanted."""

    layout: int
    home: int | None
    """For a leaf, the layout in which it is stored if no other operator reads it first; else
    None."""
    is_input: bool
    """Whether it is an input, which is loaded in any layout that is wanted."""
    is_fixed: bool
    """Whether its home is on the same devices wherever the operator runs."""


@dataclass(frozen=True, eq=False)
class OperatorPiece:
    """An operator that was cut, on some devices, as other operators see it."""

    start: int
    """The first device (``OperatorMapping.start``)."""
    outer: tuple[int, ...]
    """For each result, the number of its form as it is read."""
    operands: tuple[WantedOperand, ...]
    results: tuple[int, ...]
    """The layouts of its results."""
    left: tuple[int | None, ...]
    """For each result that is an output of the graph and has to be moved, the layout in which it is
    left, wherever the operator runs; else None."""
    weights: tuple[WantedOperand, ...]
    """The operands that are weights."""
    forward: Duration
    backward: Duration
    """NOTHING if no gradient passes."""
    passes: bool
    """Whether a gradient passes through the operator."""
    differentiated: tuple[int, ...]
    """The operands that get gradients."""
    late: Duration
    """The part of the backward pass that may come last (``ProgramStep``)."""


class MovedPiece(NamedTuple):
    """A piece on devices whose numbers are higher by ``by``."""

    piece: OperatorPiece
    by: int


class _CutOperator(NamedTuple):
    """An operator that was cut, on any devices."""

    inner: Node
    """The operator on blocks."""
    placed: PlacedAxes
    outer: tuple[int, ...]
    left: tuple[int | None, ...]
    """See ``OperatorPiece``."""
    reads: tuple[tuple[Value, tuple[Node, ...]], ...]
    """For each operand, the source, and the parallel operators through which it is read."""
    differentiated: tuple[int, ...]
    """See ``OperatorPiece``."""


_CutKey = tuple[int, tuple[tuple[int, int], ...], tuple[int, ...]]
"""The number of a kind, the cuts (``OperatorMapping.cuts``), and the forms of its operands."""


@dataclass(eq=False)
class OperatorPieces:
    """The pieces of operators, in all graphs with the same spaces. Kinds, forms and layouts are
    referred to by numbers."""

    builder: Builder
    cost: CostModel

    def __post_init__(self) -> None:
        self.kinds, self.layouts = Numbering[OperatorKind](), NumberedLayouts()
        self.forms = Numbering[ReadForm]()
        self.moves = Answers(self._move)
        """Seconds of moving a tensor from one layout to another, and its gradient back; None if
        nothing moves."""
        self.between = Answers(self._between)
        """The layout through which a tensor gets from one layout to another; None if it moves at
        once."""
        self._whole = Answers(self._whole_of)
        self._device_kinds = Answers(self._kinds_between)
        self._placed: dict[object, OperatorPiece] = {}
        self._cuts = Answers(self._cut)

    def piece(
        self, kind: int, mapping: OperatorMapping, forms: tuple[int, ...] | None
    ) -> MovedPiece | None:
        """The piece of operators of a kind, if they have one. ``forms``: those of their operands;
        None if no partial sums pass through."""
        check_time()
        forms = self._whole[kind] if forms is None else forms
        cut = self._cuts[kind, mapping.cuts, forms]
        if cut is None:
            return None
        alike = kind, mapping.axes, forms, self._device_kinds[mapping.start, mapping.last]
        placed = self._placed.get(alike)
        if placed is None:
            placed = self._placed[alike] = self._place(self.kinds.every[kind], mapping, cut)
        return MovedPiece(placed, mapping.start - placed.start)

    def _whole_of(self, kind: int) -> tuple[int, ...]:
        values = self.kinds.every[kind].node.inputs
        return tuple(self.forms[ReadForm(value.type, ())] for value in values)

    def _move(self, ends: tuple[int, int]) -> tuple[Duration, Duration] | None:
        # Equal layouts have one number.
        way = transfer(*(self.layouts.layout[end] for end in ends))
        if way.is_nothing:
            return None
        return self.cost.forward_movement(way), self.cost.movement(way)

    def _between(self, ends: tuple[int, int]) -> int | None:
        layout = layout_of_sums(*(self.layouts.layout[end] for end in ends))
        return None if layout is None else self.layouts.number[layout]

    def left_leaf(self, value: Value) -> WantedOperand:
        """A leaf that is an output of a graph."""
        return self._leaf(value, (), default_layout(value.type))

    def _place(
        self, kind: OperatorKind, mapping: OperatorMapping, cut: _CutOperator
    ) -> OperatorPiece:
        """Place an operator that was cut."""
        inner, view = cut.inner, cut.placed.view(mapping)
        needs = kind.needs or frozenset[int]()
        forward, backward = self.cost.computation(inner, needs, view, kind.use)
        if kind.needs is None:
            backward = late = NOTHING
        else:
            late = self.cost.late(inner, needs, kind.use, backward)
        wanted = [operand_layout(inner, i, view) for i in range(len(inner.inputs))]
        made = (output_layout(inner, port, view) for port in range(len(inner.types)))
        operands = [
            self._wanted(leaf is not None, read, layout)
            for leaf, read, layout in zip(kind.leaves, cut.reads, wanted, strict=True)
        ]
        weights = [own for leaf, own in zip(kind.leaves, operands, strict=True) if leaf == "weight"]
        return OperatorPiece(
            mapping.start,
            cut.outer,
            tuple(operands),
            tuple(self.layouts.number[layout] for layout in made),
            cut.left,
            tuple(weights),
            forward,
            backward,
            kind.needs is not None,
            cut.differentiated,
            late,
        )

    def _kinds_between(self, ends: tuple[int, int]) -> tuple[int, ...]:
        """The kinds of the devices from the first to the last; none if all devices are alike."""
        machine = self.cost.machine
        if len(machine.kinds) == 1:
            return ()
        return tuple(id(machine.device_at(device)) for device in range(ends[0], ends[1] + 1))

    def _cut(self, key: _CutKey) -> _CutOperator | None:
        number, cuts, forms = key
        kind = self.kinds.every[number]
        node, reads = kind.node, self._operands(kind, forms)
        outer, inner, placed = self.builder.spaces.templates.cut(
            (kind.space, cuts), node, reads, lambda alike: self.builder.cut_along(node, alike, cuts)
        )
        made = [trace(value) for value in outer]
        traced = tuple(trace(value) for value in inner.inputs)
        if [source for source, _ in traced] != [trace(value)[0] for value in reads]:
            return None
        if [value for value, _ in made] != list(inner.outputs):
            return None
        read = [_form(source, chain) for source, chain in made]
        left = [
            self.layouts.number[default_layout(value.type)] if is_left and form.chain else None
            for value, form, is_left in zip(outer, read, kind.is_left, strict=True)
        ]
        back = (kind.needs or frozenset[int]()) & differentiated(inner)
        numbers = tuple(self.forms[form] for form in read)
        return _CutOperator(inner, placed, numbers, tuple(left), traced, tuple(sorted(back)))

    def _operands(self, kind: OperatorKind, forms: Sequence[int]) -> list[Value]:
        """Values of these forms that stand for the operands of an operator."""
        made: list[Value] = []
        for number, leaf, first in zip(forms, kind.leaves, kind.same, strict=True):
            source, chain = self.forms.every[number]
            own = Leaf(leaf or "tensor", f"operand {first}", source.rank, source)
            value = Node(own).value()
            for call in chain:
                value = Node(call, (value,)).value()
            made.append(value)
        return made

    def _wanted(
        self, is_leaf: bool, read: tuple[Value, tuple[Node, ...]], layout: Layout
    ) -> WantedOperand:
        """An operand that is wanted in a layout."""
        if not is_leaf:
            return WantedOperand(self.layouts.number[layout], None, False, False)
        return self._leaf(*read, layout)

    def _leaf(self, value: Value, chain: tuple[Node, ...], wanted: Layout) -> WantedOperand:
        """A leaf as an operand, wanted in a layout after a chain of parallel operators."""
        kept, kind, number = home(value, chain, wanted), value.node.leaf.kind, self.layouts.number
        own = number[kept if kind == "input" else kept.without_halos]
        is_fixed = kind == "tensor" or kept.devices != wanted.devices
        return WantedOperand(number[wanted], own, kind == "input", is_fixed)


def _form(source: Value, chain: Sequence[Node]) -> ReadForm:
    return ReadForm(source.type, tuple(node.operator_call for node in chain))
