"""Recomputation: which steps of a schedule are done again, and before the backward pass of which.

Problem. A plan names operators whose results are not kept for the backward pass. Operators that
compute are steps of the schedule. Parallel operators (combine, replicate, reduce, partition) are
reshardings: what they bring is let go after its last use forward, and communicated again.

Meaning. A step that is recomputed is done again before the first step in the backward pass that
reads a result of it, or that makes something again which was made of it; one that computes at
latest before its own, as it saved nothing to go back with. What it makes is then held until its own
backward pass has been; what it is made from, if that is kept, as long, and what is sent again until
it is. Communication comes before the backward pass of all computations in a row up to there. A
fully sharded weight is gathered one gather ahead: while the backward pass of what was gathered
before is under way, so that computation hides it.

In micro-batches each does all of this by itself. A weight that is gathered for micro-batches only
is then gathered for each of them, forward and back, and its gradient is scattered as often. What
passes between stages or their chunks, or between slices and what is done once a step, is kept.

Source. Chen et al., arXiv:1604.06174; of communication too Korthikanti et al., MLSys 2023, section
4; weights that are gathered twice are ZeRO's third stage (Rajbhandari et al., SC 2020). Complexity:
linear in the steps and their operands. Search and runtime both ask here, so that what is priced and
counted is what is run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from pcg.graph.graph import Node
from pcg.placement.layout import Layout
from pcg.placement.saved import SavedTensors
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Slot, Step, trace
from pcg.readings.saved import view_of


@dataclass(frozen=True)
class Again:
    """What is done again in the backward pass of a schedule, by number of steps."""

    steps: frozenset[int]
    """The steps that are recomputed."""
    before: Mapping[int, tuple[int, ...]]
    """By step, those that are done again right before its backward pass, in their order forward."""
    moved: frozenset[int]
    """Steps that are done for each micro-batch because of that, and not once a step."""

    def held_from(self) -> dict[int, int]:
        """By step that is done again, the one before whose backward pass that is."""
        return {made: reader for reader, own in self.before.items() for made in own}


NEVER = Again(frozenset(), {}, frozenset())


def is_sliced(slot: Slot) -> bool:
    """Whether a tensor comes in slices in time."""
    return prod(slot.layout.type.degrees.slices) > 1


def can_be_recomputed(node: Node) -> bool:
    """Whether an operator makes tensors: of what it only shows, its operand is kept or not."""
    if node.is_leaf or node.is_join:
        return False
    return node.is_parallel or any(view_of(node, value.port) is None for value in node.outputs)


def again(
    tensors: SavedTensors,
    nodes: Collection[Node],
    stage: int | None = None,
    chunks: Mapping[int, int] = MappingProxyType({}),
) -> Again:
    """What is done again where the results of ``nodes`` are recomputed. ``stage``: the devices of a
    stage, where micro-batches are taken through stages of so many; ``chunks``: where these have
    several, the one of each step that works on slices."""
    if not nodes:
        return NEVER
    named = _named(tensors.schedule, frozenset(nodes))
    moved = frozenset[int]()
    if stage is not None:
        named, moved = _within_micro_batches(tensors, named, stage, chunks)
    before = _before(tensors, named)
    return Again(frozenset(named), _ahead(tensors, before, moved, chunks), moved)


def _named(schedule: Schedule, nodes: frozenset[Node]) -> set[int]:
    """The steps that some operators stand for: a computation for its operator, a resharding for
    each parallel operator that it carries out."""
    maker: dict[Slot, int] = {}
    named: set[int] = set()
    moves = any(node.is_parallel for node in nodes)
    for number, step in enumerate(schedule.steps):
        maker.update(dict.fromkeys(step.results, number))
        if not isinstance(step, Compute):
            continue
        if step.node in nodes and can_be_recomputed(step.node):
            named.add(number)
        for value, slot in zip(step.node.inputs, step.operands, strict=True) if moves else ():
            if nodes.isdisjoint(trace(value)[1]):
                continue
            # Slices are taken out of a whole, or joined, by a resharding of their own.
            while isinstance(move := schedule.steps[maker[slot]], Reshard):
                named.add(maker[slot])
                slot = move.source
    return named


def _within_micro_batches(
    tensors: SavedTensors, named: set[int], stage: int, chunks: Mapping[int, int]
) -> tuple[set[int], frozenset[int]]:
    """Of some steps, those that can be done again with a micro-batch; and those that are then done
    for each."""
    steps = tensors.steps
    sliced = {number for number, step in enumerate(steps) if _is_sliced(step)}
    readers: dict[Slot, set[int]] = {}
    for number, step in enumerate(steps):
        for slot in (*step.operands, *map(tensors.root, step.operands)):
            readers.setdefault(slot, set()).add(number)
    outputs = set(tensors.schedule.outputs)
    moved: set[int] = set()
    for number in sorted(named, reverse=True):
        step = steps[number]
        users = {user for slot in step.results for user in readers.get(slot, ())}
        if number not in sliced and isinstance(step, Reshard) and step.source in tensors.static:
            stays = len(_stages((step.source.layout, step.target.layout), stage)) == 1
            if stays and users and users <= sliced and outputs.isdisjoint(step.results):
                moved.add(number)
    inside = sliced | moved
    kept: set[int] = set()
    for number in named:
        step = steps[number]
        users = {user for slot in step.results for user in readers.get(slot, ())}
        parted = len({user in inside for user in (number, *users)}) > 1
        # What is moved is of the chunk that reads it.
        parted |= len({chunks.get(at) for at in (number, *users) if at not in moved}) > 1
        layouts = [slot.layout for slot in (*step.operands, *step.results)]
        if not parted and len(_stages(layouts, stage)) == 1:
            kept.add(number)
    return kept, frozenset(moved & kept)


def _is_sliced(step: Step) -> bool:
    return any(map(is_sliced, (*step.operands, *step.results)))


def _stages(layouts: Collection[Layout], stage: int) -> set[int]:
    return {device // stage for layout in layouts for device in layout.devices}


def _before(tensors: SavedTensors, named: set[int]) -> dict[int, list[int]]:
    """By step, what is done again right before its backward pass."""
    done: set[int] = set()
    before: dict[int, list[int]] = {}
    for reader in range(len(tensors.steps) - 1, -1, -1):
        wanted = list(tensors.reads[reader])
        if reader in named and tensors.needs[reader] is not None:
            wanted += tensors.made(reader) if isinstance(tensors.steps[reader], Compute) else ()
        while wanted:
            made = tensors.maker[wanted.pop()]
            if made in named and made not in done:
                done.add(made)
                before.setdefault(reader, []).append(made)
                wanted += tensors.read(made)
    return before


def _ahead(
    tensors: SavedTensors,
    before: Mapping[int, list[int]],
    moved: frozenset[int],
    chunks: Mapping[int, int],
) -> Mapping[int, tuple[int, ...]]:
    """The same, with communication as early as nothing else communicates in between, and each
    gather of weights at the place of the one before on its devices."""
    placed: dict[int, list[int]] = {}
    last: dict[tuple[object, ...], int] = {}
    for reader in sorted(before, reverse=True):
        here: dict[tuple[object, ...], int] = {}
        for made in before[reader]:
            moves = isinstance(tensors.steps[made], Reshard)
            place = _end_of_run(tensors.steps, reader, chunks) if moves else reader
            devices = _gathered(tensors, made)
            if devices is not None:
                key = devices, made in moved, chunks.get(reader)
                place, here[key] = last.get(key, place), place
            placed.setdefault(place, []).append(made)
        last |= here
    return {reader: tuple(sorted(own)) for reader, own in placed.items()}


def _end_of_run(steps: Sequence[Step], number: int, chunks: Mapping[int, int]) -> int:
    """The last computation that follows one on its devices, and in its chunk, with nothing moved in
    between."""
    first = steps[number]
    if not isinstance(first, Compute):
        return number
    devices, sliced = set(first.view.devices), _is_sliced(first)
    for at in range(number + 1, len(steps)):
        step = steps[at]
        if isinstance(step, LeafAtHome):
            continue
        if isinstance(step, Reshard) or _is_sliced(step) != sliced:
            break
        if set(step.view.devices) != devices or chunks.get(at) != chunks.get(number):
            break
        number = at
    return number


def _gathered(tensors: SavedTensors, number: int) -> tuple[int, ...] | None:
    """The devices to which a step brings a weight from where it is kept; None for other steps."""
    step = tensors.steps[number]
    if not isinstance(step, Reshard) or step.source not in tensors.static:
        return None
    home = tensors.steps[tensors.maker[step.source]]
    is_weight = isinstance(home, LeafAtHome) and home.slot.value.node.is_weight
    return step.target.layout.devices if is_weight else None
