"""The steps of a graph on machine views, in order: loads, reshardings and computations.

The search prices this list and the runtime executes it. A slot is a tensor in a layout: the output
of an operator or a leaf, with the devices of its pieces. Parallel operators have no tasks of their
own. A chain of them is the resharding from the producer's layout to the consumer's. It is two
reshardings if copies come from other devices in parts, or if partial sums are added up before they
move to other devices (``in_parts``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pcg.errors import InputError
from pcg.graph.graph import Graph, Node, Value
from pcg.placement.in_parts import layout_in_parts, layout_of_sums, stated_parts
from pcg.placement.layout import (
    Layout,
    Piece,
    default_layout,
    operand_layout,
    output_layout,
    relocated,
)
from pcg.placement.transfer import Transfer, transfer
from pcg.placement.view import MachineView
from pcg.types.parallel_operators import PLACING


@dataclass(frozen=True)
class Slot:
    """A tensor (an output of an operator, or a leaf) in a layout."""

    value: Value
    layout: Layout

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Slots are keys of everything that walks a schedule, so the hash is stored.
        return hash((self.value, self.layout))


@dataclass(frozen=True)
class LeafAtHome:
    """A leaf at home: inputs come from the data, and weights stay from step to step."""

    slot: Slot

    @property
    def operands(self) -> tuple[Slot, ...]:
        """The slots that it reads: none."""
        return ()

    @property
    def results(self) -> tuple[Slot, ...]:
        """The slot that it makes."""
        return (self.slot,)


@dataclass(frozen=True)
class Reshard:
    source: Slot
    target: Slot

    @property
    def operands(self) -> tuple[Slot, ...]:
        """The slot that it reads."""
        return (self.source,)

    @property
    def results(self) -> tuple[Slot, ...]:
        """The slot that it makes."""
        return (self.target,)

    @property
    def transfer(self) -> Transfer:
        return transfer(self.source.layout, self.target.layout)


@dataclass(frozen=True)
class Compute:
    node: Node
    view: MachineView
    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]


Step = LeafAtHome | Reshard | Compute


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of a graph. ``outputs`` are the graph's outputs, in order, ``homes`` the layouts in
    which weights are kept. Derived properties are cached by this object's identity."""

    steps: tuple[Step, ...]
    outputs: tuple[Slot, ...]
    homes: Mapping[Node, Layout]


def trace(value: Value) -> tuple[Value, tuple[Node, ...]]:
    """Return the source of a chain of parallel operators, and the chain from there on."""
    chain: list[Node] = []
    while value.node.is_parallel:
        chain.append(value.node)
        value = value.node.inputs[0]
    return value, tuple(reversed(chain))


def home(value: Value, chain: tuple[Node, ...], wanted: Layout) -> Layout:
    """Return the layout in which a leaf is kept: that of its first user, if only placement differs.

    Partition and replicate right after a leaf state how it is stored. Anything later in the chain
    is done in every step, such as the combine of a fully sharded weight. A ``tensor`` leaf, which
    comes from the rest of a model, lies as its type says.
    """
    if value.node.leaf.kind == "tensor":
        return default_layout(value.type)
    placed = value
    for node in chain:
        if node.name not in PLACING:
            stored = default_layout(placed.type)
            return relocated(stored, wanted.devices) or stored
        placed = node.value()
    return wanted


class Scheduler:
    """Builds a schedule node by node."""

    def __init__(self, views: Mapping[Node, MachineView]) -> None:
        self._views = views
        self._steps: list[Step] = []
        self._made: dict[Slot, Slot] = {}
        self._homes: dict[Node, Layout] = {}

    def run(self, graph: Graph, order: Sequence[Node]) -> Schedule:
        for node in order:
            self._compute(node)
        outputs = tuple(self._output(value) for value in graph.outputs)
        return Schedule(tuple(self._steps), outputs, dict(self._homes))

    def _compute(self, node: Node) -> None:
        view = self._views[node]
        operands = tuple(
            self._fetch(value, operand_layout(node, i, view)) for i, value in enumerate(node.inputs)
        )
        results = tuple(
            Slot(value, output_layout(node, value.port, view)) for value in node.outputs
        )
        self._steps.append(Compute(node, view, operands, results))

    def _output(self, value: Value) -> Slot:
        source, chain = trace(value)
        if not chain and not source.node.is_leaf:
            return self._produced(source)
        return self._fetch(value, default_layout(value.type))

    def _produced(self, source: Value) -> Slot:
        layout = output_layout(source.node, source.port, self._views[source.node])
        return Slot(source, layout)

    def _fetch(self, value: Value, wanted: Layout) -> Slot:
        """Return the tensor of ``value`` in the layout ``wanted``. Adds the steps to get there."""
        source, chain = trace(value)
        target = Slot(source, wanted)
        if source.node.is_leaf:
            start = Slot(source, self._leaf(source, chain, wanted))
        else:
            start = self._produced(source)
        if start == target or transfer(start.layout, wanted).is_nothing:
            return start
        if target not in self._made:
            self._move(self._intermediate(start, chain, wanted), target)
        return target

    def _intermediate(self, start: Slot, chain: tuple[Node, ...], wanted: Layout) -> Slot:
        """Return the tensor in an intermediate layout: where its copies are gathered from, or where
        its partial sums are added up. Without either, return ``start``."""
        if start.value.node.is_leaf:
            return start
        start = self._via(start, layout_of_sums(start.layout, wanted))
        split = stated_parts(chain)
        return self._via(start, split and layout_in_parts(start.layout, wanted, split))

    def _via(self, start: Slot, layout: Layout | None) -> Slot:
        """Move the tensor to ``layout`` first. Without a layout, return ``start``."""
        if layout is None:
            return start
        between = Slot(start.value, layout)
        if between not in self._made:
            self._move(start, between)
        return between

    def _move(self, source: Slot, target: Slot) -> None:
        self._made[target] = target
        self._steps.append(Reshard(source, target))

    def _leaf(self, source: Value, chain: tuple[Node, ...], wanted: Layout) -> Layout:
        node = source.node
        if node.leaf.kind == "input":
            # Data is read where it is used. Only later parallel operators move it.
            layout = home(source, chain, wanted)
            slot = Slot(source, layout)
            if slot not in self._made:
                self._made[slot] = slot
                self._steps.append(LeafAtHome(slot))
            return layout
        if node not in self._homes:
            # A weight is stored once. Its halos are fetched, and their gradients sent back.
            self._homes[node] = home(source, chain, wanted).without_halos
            self._steps.append(LeafAtHome(Slot(source, self._homes[node])))
        return self._homes[node]


def schedule(
    graph: Graph, views: Mapping[Node, MachineView], order: Sequence[Node] = ()
) -> Schedule:
    """Return the schedule of a graph. ``order``: the computing operators in the order of issue
    (``pcg.placement.order``), by default that of the graph. Raises InputError for an operator
    without a view."""
    nodes = order or graph.computing
    for node in nodes:
        if node not in views:
            raise InputError("plan", f"{node.name} has no machine view")
    return Scheduler(views).run(graph, nodes)


__all__ = [
    "Compute",
    "LeafAtHome",
    "Piece",
    "Reshard",
    "Schedule",
    "Slot",
    "Step",
    "schedule",
    "trace",
]
