"""Liveness: the time span in which each tensor of a training step is held.

A tensor is held from the step that makes it to its last use in the forward pass, or, if the
backward pass reads it (``pcg.readings.saved``), to its last use there. A view holds the tensor that
it shows. A recomputed tensor (``pcg.placement.recomputation``) is released after its last use
forward. It is held again from its recomputation to the end of the backward pass of its operator.
The operands of the recomputation, if they are kept, are held as long. The operands of a late
gradient of a weight (``pcg.placement.late``) are held while the other gradient is sent; or, if
micro-batches have a pass for weights, to that pass at the end of the backward pass. The gradient of
a tensor is held from the first computation that adds to it to the one that uses it up. Data is held
for the whole step. A mask that is drawn (``pcg.readings.masks``) is held by each operator that
reads it: while the operator runs and, if its backward pass reads the mask, until then; if the
operator is recomputed, from there on.

Time is counted in steps of the schedule. ``i`` is step i of the forward pass, ``2 n - 1 - i`` is
its backward pass, and ``2 n`` is the update. Weights and optimizer states are held throughout, and
are not among these tensors. The gradient of a weight is held from the first computation in the
backward pass that adds to it. If one device alone holds a shard, its gradient is held until the
update. If several do, it goes into a bucket as soon as the last computation has added to it.
Buckets stay from step to step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.late import late_gradients
from pcg.placement.layout import Layout
from pcg.placement.recomputation import RecomputedSteps, recomputed_steps
from pcg.placement.saved import SavedTensors, choose_reads, keys_read, saved_tensors
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Slot
from pcg.readings.masks import is_mask, multiplied
from pcg.readings.saved import Reads, back_reads, view_of
from pcg.readings.work import gradient_nodes


@dataclass(frozen=True)
class Lifetime:
    """The span of time in which a tensor, or its gradient, is held in a layout. Both ends are
    included."""

    slot: Slot
    first: int
    last: int
    itemsize: int | None = None
    """Bytes of an element, if they do not follow from the number formats of the training."""

    @property
    def layout(self) -> Layout:
        """The layout of the tensor."""
        return self.slot.layout


@dataclass(frozen=True)
class Liveness:
    """All that is held in a step, and what is recomputed before the backward pass of each step."""

    lifetimes: tuple[Lifetime, ...]
    recomputed: Mapping[int, tuple[int, ...]]
    """See ``RecomputedSteps.before``."""
    end: int
    """The time of the update."""
    gradients: tuple[Lifetime, ...] = ()
    """The spans of weights' gradients, without the buckets of those that several devices hold."""


def is_shared(layout: Layout) -> bool:
    """Whether several devices hold a shard, so that its gradients are added up."""
    return any(len(devices) > 1 for devices in layout.holders.values())


def saved_positions(graph: Graph) -> dict[Node, Reads]:
    """The operands and outputs of each operator of an uncut graph that are held because the
    backward pass reads them. A tensor that several operators read is listed once, at its first
    reader."""
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
        read_ways = [
            keys_read(reads, operands, [roots[value] for value in node.outputs])
            for reads in back_reads(node, needs)
        ]
        ways.append(read_ways if needs else [])
    for node, read in zip(
        nodes, choose_reads(ways, lambda value: value.type.elements), strict=True
    ):
        for value in read:
            if value.node.is_weight:
                continue
            place = _reader(node, value, roots)
            known = places.get(value)
            # A reader downstream holds the tensor in the layout that it wants.
            if known is None or known[1].outputs:
                places[value] = place
    saved: dict[Node, Reads] = {}
    for node, reads in places.values():
        known = saved.get(node, Reads())
        saved[node] = Reads(known.operands | reads.operands, known.outputs | reads.outputs)
    return saved


def _reader(node: Node, value: Value, roots: Mapping[Value, Value]) -> tuple[Node, Reads]:
    """The place at which a tensor counts that the backward pass of ``node`` reads: as an operand of
    ``node``; or, if it is the operator's own output or is repeated in the forward pass, as the
    output of the operator that makes it."""
    for i, operand in enumerate(node.inputs):
        whole = operand.type.elements == value.type.elements
        if roots.get(operand, operand) == value and (whole or value.node.is_leaf):
            return node, Reads(frozenset({i}))
    return value.node, Reads(outputs=frozenset({value.port}))


def liveness(
    schedule: Schedule,
    remade: Collection[Node] = (),
    stage: int | None = None,
    chunks: Mapping[int, int] = MappingProxyType({}),
    *,
    has_weights_pass: bool = False,
) -> Liveness:
    """The lifetimes of all tensors of a schedule, with the results of ``remade`` recomputed.
    ``stage``: the number of devices of a stage, if the schedule is that of a pipeline; ``chunks``:
    the chunks of its steps, as for ``recomputed_steps``; ``has_weights_pass``: whether
    micro-batches have a pass for weights."""
    tensors = saved_tensors(schedule)
    done = recomputed_steps(tensors, remade, stage, chunks)
    return _LivenessReader(tensors, done, has_weights_pass).run()


@dataclass
class _LivenessReader:
    tensors: SavedTensors
    again: RecomputedSteps
    has_weights_pass: bool = False
    last: dict[Slot, int] = field(default_factory=dict[Slot, int])
    second: dict[Slot, tuple[int, int]] = field(default_factory=dict[Slot, tuple[int, int]])
    """The second span of each recomputed tensor."""
    readers: dict[Slot, list[int]] = field(default_factory=dict[Slot, list[int]])
    """The steps that read a slot itself, rather than a view of it."""

    def __post_init__(self) -> None:
        self.schedule, self.end = self.tensors.schedule, self.tensors.end
        self.steps, self.needs = self.tensors.steps, self.tensors.needs
        self.roots, self.same = self.tensors.roots, self.tensors.same
        self.maker, self.static = self.tensors.maker, self.tensors.static
        self.root = self.tensors.root
        has_pass = self.has_weights_pass
        self._late = late_gradients(self.schedule, self.again.steps, has_weights_pass=has_pass)

    def run(self) -> Liveness:
        for i, step in enumerate(self.steps):
            for slot in dict.fromkeys(step.operands):
                self.last[self.root(slot)] = i
                self.readers.setdefault(slot, []).append(i)
        for slot in self.schedule.outputs:
            self.last[self.root(slot)] = self.end
        held_from = self.again.held_from()
        for made, reader in held_from.items():
            # Tensors that no backward pass reads are held only while steps are recomputed.
            done = self.end - 1 - reader
            self.second.update(dict.fromkeys(self.tensors.made(made), (done, done)))
            for slot in self.tensors.read(made):
                self._use(slot, done, held_from)
        for i, read in enumerate(self.tensors.reads):
            for slot in read:
                self._use(slot, self._back(i), held_from)
        grads, of_weights = self._gradients()
        lives = (*self._values(), *grads)
        return Liveness(lives, self.again.before, self.end, tuple(of_weights))

    def _back(self, number: int) -> int:
        """The time at which the backward pass of a step has ended."""
        late = self._late.get(number)
        return self.end - 1 - (number if late is None else late.beside)

    def _use(self, slot: Slot, at: int, held_from: Mapping[int, int]) -> None:
        """Note that the backward pass reads a tensor at a time."""
        made = self.maker[slot]
        if made not in held_from:
            self.last[slot] = max(self.last.get(slot, made), at)
        elif slot in self.second:
            # A recomputed tensor may be held longer, for a pass for weights.
            first, last = self.second[slot]
            self.second[slot] = first, max(last, at)

    def _values(self) -> Iterable[Lifetime]:
        for slot, made in self.maker.items():
            if slot in self.roots:
                continue
            kind = slot.value.node.leaf.kind if isinstance(self.steps[made], LeafAtHome) else ""
            if kind == "input":
                yield from self._data(slot)
            elif kind != "weight":
                yield Lifetime(slot, made, self.last.get(slot, made))
            if slot in self.second:
                yield Lifetime(slot, *self.second[slot])

    def _data(self, slot: Slot) -> Iterable[Lifetime]:
        """The spans of an input. A mask has a span for each time that an operator draws it."""
        readers = self.readers.get(slot, []) if is_mask(slot.value) else []
        steps = [step for at in readers if isinstance(step := self.steps[at], Compute)]
        joins = any(step.node.is_join for step in steps)
        if len(steps) < len(readers) or not steps or joins or slot in self.schedule.outputs:
            yield Lifetime(slot, 0, self.end)
            return
        again = self.again.held_from()
        for at, step in zip(readers, steps, strict=True):
            if any(self.root(result) == slot for result in step.results):
                # From here on, it is read through views.
                yield Lifetime(slot, at, max(at, self.last[slot]))
                continue
            masks = [is_mask(value) for value in (operand.value for operand in step.operands)]
            alone = multiplied(step.node.operator_call, masks)
            itemsize = None if alone is None else 1
            saved, back = slot in self.tensors.reads[at], self.end - 1 - at
            kept = saved and at not in again
            yield Lifetime(slot, at, back if kept else at, itemsize)
            if saved and not kept:
                yield Lifetime(slot, self.end - 1 - again[at], back, itemsize)

    def _gradients(self) -> tuple[list[Lifetime], list[Lifetime]]:
        """The spans of the gradients of operators' results, and of those of weights."""
        first: dict[Slot, int] = {}
        complete: dict[Slot, int] = {}
        for i, step in enumerate(self.steps):
            needs = self.needs[i]
            if needs is not None:
                added = (step.source,) if isinstance(step, Reshard) else ()
                if isinstance(step, Compute):
                    added = tuple(step.operands[j] for j in needs)
                # The last reader in the forward pass adds to the gradient first in the backward
                # pass.
                first.update((self.same.get(slot, slot), i) for slot in added)
                for slot in added:
                    complete.setdefault(self.same.get(slot, slot), i)
        made: list[Lifetime] = []
        of_weights: list[Lifetime] = []
        for slot, i in first.items():
            begin = self.end - 1 - i
            if slot not in self.static:
                made.append(Lifetime(slot, begin, self._back(self.maker[slot])))
            elif slot.value.node.is_weight:
                end = self.end - 1 - complete[slot] if is_shared(slot.layout) else self.end
                of_weights.append(Lifetime(slot, begin, end))
        return made, of_weights
