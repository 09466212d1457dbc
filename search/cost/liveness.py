"""Liveness: from when to when each tensor of a training step is held.

A tensor is held from where it is made until its last use forward or, if back-propagation reads it
(``pcg.readings.saved``), until its last use there. A view holds the tensor that it shows. What is
computed again is let go after its last use forward, and held again from its first use in the
backward pass; what it is made from is held until then. The gradient of a tensor is held from the
first computation that adds to it to the one that uses it up. Data is there for the whole step.

Time counts steps of the schedule: ``i`` is step i forward, ``2 n - 1 - i`` is its backward pass,
and ``2 n`` the update. Weights and what the optimizer keeps of them are held throughout and are not
among these tensors. The gradient of a weight grows from the first computation in the backward pass
that adds to it. Where one device holds a piece alone, it is there until the update. Where several
do, it goes into a buffer, which stays from step to step, as soon as the last has added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TypeVar

from pcg.graph.components import components
from pcg.graph.graph import Graph, Node, Value
from pcg.placement.backward import gradients
from pcg.placement.layout import Layout
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Slot
from pcg.readings.saved import Reads, back_reads, is_pointwise, view_of
from pcg.readings.work import gradient_nodes

LONGEST = 8
"""Operators in a row that are recomputed from what is held, at most."""


@dataclass(frozen=True)
class Life:
    """A tensor, or its gradient, in a layout, held from one point in time to another, both
    included."""

    slot: Slot
    first: int
    last: int

    @property
    def layout(self) -> Layout:
        """Where its pieces lie."""
        return self.slot.layout


@dataclass(frozen=True)
class Liveness:
    """All that is held in a step, and what is recomputed before the backward pass of which step."""

    lifetimes: tuple[Life, ...]
    recomputed: Mapping[int, tuple[int, ...]]
    end: int
    """The time of the update."""
    gradients: tuple[Life, ...] = ()
    """Those of weights, without the buffers of what several devices hold."""


def is_shared(layout: Layout) -> bool:
    """Whether several devices hold a piece, so that its gradients are added up."""
    return any(len(devices) > 1 for devices in layout.holders.values())


Key = TypeVar("Key", bound=Hashable)


def chosen(
    options: Sequence[Sequence[frozenset[Key]]], size: Callable[[Key], int]
) -> list[frozenset[Key]]:
    """One of the ways in which each step may be taken back, by what it reads: one that reads what
    is held anyway, else the smallest."""
    held = {key for ways in options if len(ways) == 1 for key in ways[0]}
    reads: list[frozenset[Key]] = [frozenset()] * len(options)
    for i in range(len(options) - 1, -1, -1):
        ways = options[i]
        if ways:
            reads[i] = min(ways, key=lambda way: sum(size(key) for key in way if key not in held))
            held |= reads[i]
    return reads


def saved_positions(graph: Graph) -> dict[Node, Reads]:
    """For an uncut graph: the operands and outputs of each operator that are held because
    back-propagation reads them; what several read is listed once, at its first reader."""
    trained = gradient_nodes(graph)
    nodes = graph.operators
    roots: dict[Value, Value] = {}
    ways: list[list[frozenset[Value]]] = []
    places: dict[Value, tuple[Node, Reads]] = {}
    for node in nodes:
        operands = [roots.get(value, value) for value in node.inputs]
        for value in node.outputs:
            of = view_of(node, value.port)
            roots[value] = value if of is None else operands[of]
        needs = frozenset(i for i, value in enumerate(node.inputs) if value.node in trained)
        own = [
            _keys(reads, operands, [roots[value] for value in node.outputs])
            for reads in back_reads(node, needs)
        ]
        ways.append(own if needs else [])
    for node, read in zip(nodes, chosen(ways, lambda value: value.type.elements), strict=True):
        for value in read:
            if value.node.is_weight:
                continue
            place = _reader(node, value, roots)
            known = places.get(value)
            # A reader downstream holds it in the layout in which it wants it.
            if known is None or known[1].outputs:
                places[value] = place
    saved: dict[Node, Reads] = {}
    for node, reads in places.values():
        known = saved.get(node, Reads())
        saved[node] = Reads(known.operands | reads.operands, known.outputs | reads.outputs)
    return saved


def _reader(node: Node, value: Value, roots: Mapping[Value, Value]) -> tuple[Node, Reads]:
    """Where a tensor counts that an operator reads: as its operand, but where it is the operator's
    own or repeated in the forward pass, as the output of the one that makes it."""
    for i, operand in enumerate(node.inputs):
        whole = operand.type.elements == value.type.elements
        if roots.get(operand, operand) == value and (whole or value.node.is_leaf):
            return node, Reads(frozenset({i}))
    return value.node, Reads(outputs=frozenset({value.port}))


def _keys(reads: Reads, operands: Sequence[Key], outputs: Sequence[Key]) -> frozenset[Key]:
    return frozenset([*(operands[i] for i in reads.operands), *(outputs[i] for i in reads.outputs)])


def liveness(schedule: Schedule, remade: Collection[Node] = ()) -> Liveness:
    """The lifetimes of all tensors of a schedule; the results of ``remade`` are recomputed."""
    return _Reader(_tensors(schedule), frozenset(remade)).run()


def worth_recomputing(schedule: Schedule, held: Collection[Node] = ()) -> frozenset[Node]:
    """Pointwise operators whose results take more memory than what they can be made from again;
    none of those that are to be ``held``.

    Chains of them, such as the steps of a norm, hang together: each is taken as a whole or not at
    all, and none is longer than ``LONGEST``.
    """
    return _Reader(_tensors(schedule), frozenset()).worth_recomputing(held)


@dataclass
class _Tensors:
    """The tensors of a schedule: who makes each, and which the backward pass reads."""

    schedule: Schedule
    roots: dict[Slot, Slot] = field(default_factory=dict[Slot, Slot])
    """By view, the tensor that it shows."""
    same: dict[Slot, Slot] = field(default_factory=dict[Slot, Slot])
    """Those that show all of it once: their gradients are the same too."""
    maker: dict[Slot, int] = field(default_factory=dict[Slot, int])
    static: set[Slot] = field(default_factory=set[Slot])
    """Weights at home, and data."""

    def __post_init__(self) -> None:
        self.steps = self.schedule.steps
        self.needs = gradients(self.schedule).steps
        self.end = 2 * len(self.steps)
        ways: list[list[frozenset[Slot]]] = []
        for i, step in enumerate(self.steps):
            match step:
                case LeafAtHome(slot):
                    self.maker[slot] = i
                    if slot.value.node.leaf.kind != "tensor":
                        self.static.add(slot)
                    ways.append([])
                case Reshard(_, target):
                    self.maker[target] = i
                    ways.append([])
                case Compute():
                    self._results(i, step)
                    ways.append(self._ways(step, self.needs[i]))
        self.reads = chosen(ways, self.size)

    def _results(self, i: int, step: Compute) -> None:
        for port, slot in enumerate(step.results):
            of = view_of(step.node, port)
            if of is None:
                self.maker[slot] = i
                continue
            shown = step.operands[of]
            self.roots[slot] = self.root(shown)
            if prod(slot.layout.type.held) == prod(shown.layout.type.held):
                self.same[slot] = self.same.get(shown, shown)
            else:
                self.maker[slot] = i

    def _ways(self, step: Compute, needs: frozenset[int] | None) -> list[frozenset[Slot]]:
        if needs is None:
            return []
        operands = [self.root(slot) for slot in step.operands]
        results = [self.root(slot) for slot in step.results]
        return [_keys(reads, operands, results) for reads in back_reads(step.node, needs)]

    def root(self, slot: Slot) -> Slot:
        return self.roots.get(slot, slot)

    def size(self, slot: Slot) -> int:
        """Elements on a device of what comes and goes."""
        return 0 if slot in self.static else prod(slot.layout.type.held)


_tensors = lru_cache(maxsize=2)(_Tensors)
"""Those of a schedule, which is asked about with other operators recomputed."""


@dataclass
class _Reader:
    tensors: _Tensors
    remade: frozenset[Node]
    last: dict[Slot, int] = field(default_factory=dict[Slot, int])
    second: dict[Slot, tuple[int, int]] = field(default_factory=dict[Slot, tuple[int, int]])
    """When what is recomputed is held again."""
    recomputed: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def __post_init__(self) -> None:
        self.schedule = self.tensors.schedule
        self.steps, self.needs, self.end = self.tensors.steps, self.tensors.needs, self.tensors.end
        self.roots, self.same, self.maker = (
            self.tensors.roots,
            self.tensors.same,
            self.tensors.maker,
        )
        self.static, self.reads = self.tensors.static, self.tensors.reads
        self.root, self._size = self.tensors.root, self.tensors.size

    def run(self) -> Liveness:
        for i, step in enumerate(self.steps):
            for slot in step.operands:
                self.last[self.root(slot)] = i
        for slot in self.schedule.outputs:
            self.last[self.root(slot)] = self.end
        for i in range(len(self.steps) - 1, -1, -1):
            # In the order in which they are made, so that what is recomputed is in one order too.
            for slot in sorted(self.reads[i], key=lambda one: (self.maker[one], one.value.port)):
                self._use(slot, i)
        grads, of_weights = self._gradients()
        recomputed = {i: tuple(made) for i, made in self.recomputed.items()}
        return Liveness((*self._values(), *grads), recomputed, self.end, tuple(of_weights))

    def _use(self, slot: Slot, reader: int) -> None:
        """The backward pass of a step reads a tensor."""
        at, made = self.end - 1 - reader, self.maker[slot]
        step = self.steps[made]
        if not (isinstance(step, Compute) and step.node in self.remade):
            self.last[slot] = max(self.last.get(slot, made), at)
            return
        if slot in self.second:
            self.second[slot] = (self.second[slot][0], at)
            return
        for operand in step.operands:
            self._use(self.root(operand), reader)
        self.recomputed.setdefault(reader, []).append(made)
        self.second.update((result, (at, at)) for result in map(self.root, step.results))

    def _values(self) -> Iterable[Life]:
        for slot, made in self.maker.items():
            if slot in self.roots:
                continue
            kind = slot.value.node.leaf.kind if isinstance(self.steps[made], LeafAtHome) else ""
            if kind == "input":
                yield Life(slot, 0, self.end)
            elif kind != "weight":
                yield Life(slot, made, self.last.get(slot, made))
            if slot in self.second:
                yield Life(slot, *self.second[slot])

    def _gradients(self) -> tuple[list[Life], list[Life]]:
        """The gradients of what is made, and those of weights."""
        first: dict[Slot, int] = {}
        complete: dict[Slot, int] = {}
        for i, step in enumerate(self.steps):
            needs = self.needs[i]
            if needs is not None:
                added = (step.source,) if isinstance(step, Reshard) else ()
                if isinstance(step, Compute):
                    added = tuple(step.operands[j] for j in needs)
                # The last that reads it forward is the first that adds to it in the backward pass.
                first.update((self.same.get(slot, slot), i) for slot in added)
                for slot in added:
                    complete.setdefault(self.same.get(slot, slot), i)
        made: list[Life] = []
        of_weights: list[Life] = []
        for slot, i in first.items():
            begin = self.end - 1 - i
            if slot not in self.static:
                made.append(Life(slot, begin, self.end - 1 - self.maker[slot]))
            elif slot.value.node.is_weight:
                end = self.end - 1 - complete[slot] if is_shared(slot.layout) else self.end
                of_weights.append(Life(slot, begin, end))
        return made, of_weights

    def worth_recomputing(self, kept: Collection[Node]) -> frozenset[Node]:
        depth: dict[int, int] = {}
        beside: dict[int, list[int]] = {}
        for i, step in enumerate(self.steps):
            if not isinstance(step, Compute) or not is_pointwise(step.node):
                continue
            if step.node in kept:
                continue
            if all(slot in self.roots for slot in step.results):
                continue
            before = [made for slot in step.operands if (made := self._made(slot)) in depth]
            if max((depth[made] for made in before), default=0) < LONGEST:
                depth[i] = 1 + max((depth[made] for made in before), default=0)
                beside[i] = before
                for made in before:
                    beside[made].append(i)
        chains = components(list(depth), beside.__getitem__)
        leader = {i: chain[0] for chain in chains for i in chain}
        read = {slot for slots in self.reads for slot in slots}
        gain: dict[int, int] = dict.fromkeys(leader.values(), 0)
        wanted = {i for slot in read if (i := self.maker[slot]) in depth}
        for i in sorted(depth, reverse=True):
            if i in wanted:
                wanted.update(
                    made for slot in self.steps[i].operands if (made := self._made(slot)) in depth
                )
        held: set[Slot] = set()
        for i in wanted:
            gain[leader[i]] += sum(self._size(s) for s in self._results_of(i) if s in read)
            for slot in map(self.root, self.steps[i].operands):
                if self.maker[slot] not in depth and slot not in read and slot not in held:
                    held.add(slot)
                    gain[leader[i]] -= self._size(slot)
        return frozenset(self._node(i) for i in wanted if gain[leader[i]] > 0)

    def _made(self, slot: Slot) -> int:
        return self.maker[self.root(slot)]

    def _results_of(self, i: int) -> list[Slot]:
        step = self.steps[i]
        return [self.root(slot) for slot in step.results] if isinstance(step, Compute) else []

    def _node(self, i: int) -> Node:
        step = self.steps[i]
        assert isinstance(step, Compute)
        return step.node
