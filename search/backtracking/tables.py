"""Tables of operators for the machine mapping, kept from one graph to the next.

The search maps thousands of graphs that share most of their parts. Operators of the same call and
types have the same views, layouts and costs, so all of these are numbered, and looked up by number.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from pcg.graph.graph import Node, Value
from pcg.placement.layout import Layout, grid, operand_layout, output_layout, spread
from pcg.placement.schedule import home, trace
from pcg.placement.transfer import transfer
from pcg.placement.view import MachineView, Range
from pcg.readings.kernels import own_use
from pcg.types.parallel_operators import PLACING
from pcg.types.tensor import ParallelTensor
from search.backtracking.elimination import Seconds
from search.backtracking.views import views_on
from search.cost.cost import NOTHING, CostModel, Duration


@dataclass(frozen=True, eq=False)
class Source:
    """Where an operand comes from: an output of an operator or leaf, through a chain."""

    value: Value
    chain: int
    """The number of the leaf's chain of parallel operators; -1 if it is no leaf."""
    gradient: bool
    """Whether it depends on a weight."""
    devices: int = 1
    """How many devices a leaf takes at home, where that isn't up to its user."""


@dataclass(frozen=True, eq=False)
class MappedNode:
    """A compute node as the mapping sees it."""

    node: Node
    kind: int
    """The number of its call and operand types."""
    tasks: int
    sources: tuple[Source, ...]
    needs: frozenset[int]
    """The operands that depend on a weight."""


@dataclass(frozen=True)
class LeafUse:
    """An operand that is a leaf."""

    operand: int
    chain: int
    moves_back: bool
    """Whether the resharding of its gradient counts."""
    trained: bool
    """Whether its weight's exchange and update count."""


@dataclass(frozen=True)
class OutputUse:
    """An output that the graph returns through a chain of parallel operators."""

    port: int
    layout: int
    moves_back: bool


@dataclass(frozen=True)
class CostProfile:
    """All that an operator's own cost follows from, its view apart."""

    kind: int
    needs: frozenset[int]
    trained: bool
    """Whether gradients pass through it."""
    leaves: tuple[LeafUse, ...]
    outputs: tuple[OutputUse, ...]
    parts: tuple[int, ...]
    """By port: how many gradients come back, to be added up."""


@dataclass(frozen=True)
class Flow:
    """A value that passes from one operator to another."""

    port: int
    operands: tuple[int, ...]
    moves_back: bool


@dataclass(frozen=True)
class Share:
    """A weight that a later operator uses too: its first user decides where it lives."""

    chain: int
    first: int
    operand: int
    moves_back: bool


class _Numbers:
    """Numbers for equal things."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


MAX_READINGS = 1 << 17
"""So many operators of past graphs are remembered."""


class Tables:
    """Views, layouts, transfers and costs by number."""

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self.views: list[MachineView] = []
        self._readings: dict[Node, MappedNode] = {}
        self._kinds = _Numbers()
        self._samples: dict[int, Node] = {}
        self._chains = _Numbers()
        self._chain_samples: dict[int, tuple[Value, tuple[Node, ...]]] = {}
        self._view_numbers = _Numbers()
        self._layout_numbers = _Numbers()
        self._layouts: list[Layout] = []
        self._candidates: dict[tuple[int, Range], tuple[int, ...]] = {}
        self._produced: dict[tuple[int, int, int], int] = {}
        self._wanted: dict[tuple[int, int, int], int] = {}
        self._homes: dict[tuple[int, int], int] = {}
        self._spread: dict[ParallelTensor, int] = {}
        self._moved: dict[tuple[int, int], tuple[Duration, Duration]] = {}
        self._own: dict[tuple[CostProfile, Range], Seconds] = {}
        self._between: dict[Hashable, Seconds] = {}

    def forget(self) -> None:
        """Let go of the graphs of the past, if there are many, but not of what they taught."""
        if len(self._readings) > MAX_READINGS:
            self._readings.clear()

    def reading(self, node: Node) -> MappedNode:
        """Read a compute node; those that it depends on have been read before."""
        found = self._readings.get(node)
        if found is None:
            found = self._readings[node] = self._read(node)
        return found

    def _read(self, node: Node) -> MappedNode:
        kind = self._kinds.of((node.operator_call, tuple(v.type for v in node.inputs)))
        self._samples.setdefault(kind, node)
        sources = tuple(self.source(value) for value in node.inputs)
        needs = frozenset(i for i, source in enumerate(sources) if source.gradient)
        return MappedNode(node, kind, int(np.prod(grid(node))), sources, needs)

    def source(self, value: Value) -> Source:
        """What is behind a value; the operator there has been read before."""
        found, chain = trace(value)
        if not found.node.is_leaf:
            return Source(found, -1, bool(self._readings[found.node].needs))
        leaf = found.node.leaf
        number = self._chains.of((leaf.kind, leaf.type, tuple(node.call for node in chain)))
        self._chain_samples.setdefault(number, (found, chain))
        return Source(found, number, leaf.kind != "input", _stored(found, chain))

    def candidates(self, kind: int, devices: Range) -> tuple[int, ...]:
        """The numbers of the views of an operator within a range of devices."""
        found = self._candidates.get((kind, devices))
        if found is None:
            views = views_on(self.cost.machine, grid(self._samples[kind]), devices)
            found = self._candidates[kind, devices] = tuple(self._number(view) for view in views)
        return found

    def _number(self, view: MachineView) -> int:
        number = self._view_numbers.of(view)
        if number == len(self.views):
            self.views.append(view)
        return number

    def _layout(self, layout: Layout) -> int:
        number = self._layout_numbers.of(layout)
        if number == len(self._layouts):
            self._layouts.append(layout)
        return number

    def produced(self, kind: int, port: int, view: int) -> int:
        """The layout of an output."""
        key = (kind, port, view)
        found = self._produced.get(key)
        if found is None:
            layout = output_layout(self._samples[kind], port, self.views[view])
            found = self._produced[key] = self._layout(layout)
        return found

    def wanted(self, kind: int, operand: int, view: int) -> int:
        """The layout of an operand."""
        key = (kind, operand, view)
        found = self._wanted.get(key)
        if found is None:
            layout = operand_layout(self._samples[kind], operand, self.views[view])
            found = self._wanted[key] = self._layout(layout)
        return found

    def spread(self, tensor: ParallelTensor) -> int:
        """The layout in which a graph returns a tensor."""
        found = self._spread.get(tensor)
        if found is None:
            found = self._spread[tensor] = self._layout(spread(tensor))
        return found

    def home(self, chain: int, wanted: int) -> int:
        """The layout in which a leaf is kept whose first user wants it so."""
        found = self._homes.get((chain, wanted))
        if found is None:
            layout = home(*self._chain_samples[chain], self._layouts[wanted])
            found = self._homes[chain, wanted] = self._layout(layout)
        return found

    def moved(self, source: int, target: int) -> tuple[Duration, Duration]:
        """The transfer between two layouts of a tensor, forward and backward."""
        found = self._moved.get((source, target))
        if found is None:
            change = transfer(self._layouts[source], self._layouts[target])
            both = self.cost.forward_movement(change), self.cost.movement(change)
            found = self._moved[source, target] = both
        return found

    def computation(self, profile: CostProfile, view: int) -> tuple[Duration, Duration]:
        """The tasks of an operator, forward and backward."""
        needs = profile.needs if profile.trained else frozenset[int]()
        made = self.cost.computation(self._samples[profile.kind], needs, self.views[view])
        return made if profile.trained else (made[0], NOTHING)

    def late(self, profile: CostProfile, view: int) -> Duration:
        """The part of an operator's backward pass that may come last (``ProgramStep``)."""
        if not profile.trained:
            return NOTHING
        node, back = self._samples[profile.kind], self.computation(profile, view)[1]
        return self.cost.late(node, profile.needs, own_use(node), back)

    def layout(self, number: int) -> Layout:
        """The layout of a number."""
        return self._layouts[number]

    def trained(self, home: int) -> tuple[Duration, Duration]:
        """The exchange of a weight's gradient, and its update."""
        return self.cost.weight(self._layouts[home])

    def own(self, profile: CostProfile, devices: Range) -> Seconds:
        """Seconds [2, views] of an operator with its leaves and the outputs that it returns."""
        found = self._own.get((profile, devices))
        if found is None:
            views = self.candidates(profile.kind, devices)
            pairs = [self._alone(profile, view) for view in views]
            found = self._own[profile, devices] = _stack(np.array(pairs))
        return found

    def _alone(self, profile: CostProfile, view: int) -> tuple[float, float]:
        """Seconds forward and backward."""
        needs = profile.needs if profile.trained else frozenset[int]()
        kind = profile.kind
        forward, backward = self.cost.compute_seconds(self._samples[kind], needs, self.views[view])
        ports = range(len(profile.parts))
        made = [self.layout(self.produced(kind, port, view)) for port in ports]
        backward = backward + self.cost.sums(made, profile.parts) if profile.trained else 0.0
        for leaf in profile.leaves:
            wanted = self.wanted(kind, leaf.operand, view)
            kept = self.home(leaf.chain, wanted)
            seconds = self.moved(kept, wanted)[1].longest
            forward += seconds
            backward += seconds if leaf.moves_back else 0.0
            if leaf.trained:
                backward += sum(phase.longest for phase in self.trained(kept))
        for output in profile.outputs:
            start = self.produced(kind, output.port, view)
            seconds = self.moved(start, output.layout)[1].longest
            forward += seconds
            backward += seconds if output.moves_back else 0.0
        return forward, backward

    def between(
        self, source: tuple[int, Range], target: tuple[int, Range], link: Flow | Share
    ) -> Seconds:
        """Seconds [2, views, views] of what passes between two operators (kind, range)."""
        key = (source, target, link)
        found = self._between.get(key)
        if found is None:
            pairs = [
                [self._passed(source[0], a, target[0], b, link) for b in self.candidates(*target)]
                for a in self.candidates(*source)
            ]
            found = self._between[key] = _stack(np.array(pairs))
        return found

    def into(
        self, source: tuple[int, Range], target: tuple[CostProfile, Range], link: Flow | Share
    ) -> Seconds:
        """Seconds [2, views, views] of what passes between two operators, and of the second."""
        key = (source, target, link)
        found = self._between.get(key)
        if found is None:
            profile, devices = target
            passed = self.between(source, (profile.kind, devices), link)
            found = self._between[key] = passed + self.own(profile, devices)[:, None, :]
        return found

    def _passed(
        self, source: int, a: int, target: int, b: int, link: Flow | Share
    ) -> tuple[float, float]:
        """Seconds forward and backward; operands that want the same layout get one resharding."""
        if isinstance(link, Share):
            start = self.home(link.chain, self.wanted(source, link.first, a))
            ends = {self.wanted(target, link.operand, b)}
        else:
            start = self.produced(source, link.port, a)
            ends = {self.wanted(target, operand, b) for operand in link.operands}
        seconds = sum(self.moved(start, end)[1].longest for end in ends)
        return seconds, seconds if link.moves_back else 0.0


def _stored(value: Value, chain: tuple[Node, ...]) -> int:
    """The devices that keep a leaf if it is not kept as its user wants it, else 1."""
    if value.node.leaf.kind == "tensor":
        return value.type.pieces
    for node in chain:
        if node.name not in PLACING:
            return node.inputs[0].type.pieces
    return 1


def _stack(pairs: Seconds) -> Seconds:
    """From seconds [..., (forward, backward)] to [(whole step, forward), ...]."""
    forward = pairs[..., 0]
    return np.stack([forward + pairs[..., 1], forward])
