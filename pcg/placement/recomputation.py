"""Recomputation: the steps of a schedule that are done again, and before which backward pass.

Problem. A plan names operators whose results are not kept for the backward pass. Compute operators
are steps of the schedule. Parallel operators (combine, replicate, reduce, partition) are
reshardings: the tensor that they bring is dropped after its last use forward, and communicated
again.

Meaning. A recomputed step is done again before the first step of the backward pass that reads its
result, or that recomputes a tensor made of the result. A computation is done again at the latest
before its own backward pass, since it saved nothing. Its results are then held until its own
backward pass is done. Its operands are held as long if they are kept, and until then if they are
communicated again. Communication is done again before the backward pass of the whole run of
computations that ends with the reader. A fully sharded weight is gathered one gather ahead: during
the backward pass of the computations that use the previous gather, which hides it.

With micro-batches, each of them does all of this by itself. A weight that is gathered only for
micro-batches is gathered for each of them, forward and backward, and its gradient is scattered as
often. Tensors that pass between stages, between chunks, or between slices and steps that are done
once, are kept.

Source. Chen et al., arXiv:1604.06174. For communication also Korthikanti et al., MLSys 2023,
section 4. Weights that are gathered twice are ZeRO's third stage (Rajbhandari et al., SC 2020).
Complexity: linear in the steps and their operands. Search and runtime both use this module, so that
priced and executed steps are the same.
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
class RecomputedSteps:
    """The steps of a schedule that are done again in the backward pass, by number."""

    steps: frozenset[int]
    """The steps that are recomputed."""
    before: Mapping[int, tuple[int, ...]]
    """By step: the steps that are done again right before its backward pass, in forward order."""
    moved: frozenset[int]
    """The steps that are therefore done for each micro-batch, and not once a step."""

    def held_from(self) -> dict[int, int]:
        """Return, for each step done again, the step before whose backward pass that is."""
        return {step: reader for reader, steps in self.before.items() for step in steps}


NO_RECOMPUTATION = RecomputedSteps(frozenset(), {}, frozenset())


def is_sliced(slot: Slot) -> bool:
    """Whether a tensor comes in slices in time."""
    return prod(slot.layout.type.degrees.slices) > 1


def can_be_recomputed(node: Node) -> bool:
    """Whether an operator makes tensors. A view has no elements of its own to recompute."""
    if node.is_leaf or node.is_join:
        return False
    return node.is_parallel or any(view_of(node, value.port) is None for value in node.outputs)


def recomputed_steps(
    tensors: SavedTensors,
    nodes: Collection[Node],
    stage: int | None = None,
    chunks: Mapping[int, int] = MappingProxyType({}),
) -> RecomputedSteps:
    """Return the steps that are done again if the results of ``nodes`` are recomputed.

    ``stage`` is the number of devices of a stage, if micro-batches pass through stages. ``chunks``
    is the chunk of each step that works on slices, if stages have several.
    """
    if not nodes:
        return NO_RECOMPUTATION
    named = _steps_of(tensors.schedule, frozenset(nodes))
    moved = frozenset[int]()
    if stage is not None:
        named, moved = _within_micro_batches(tensors, named, stage, chunks)
    before = _steps_before(tensors, named)
    return RecomputedSteps(frozenset(named), _moved_ahead(tensors, before, moved, chunks), moved)


def _steps_of(schedule: Schedule, nodes: frozenset[Node]) -> set[int]:
    """Return the steps of some operators: the computation of an operator, and the reshardings of a
    parallel operator."""
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
            # A resharding of its own takes slices out of a whole, or joins them.
            while isinstance(move := schedule.steps[maker[slot]], Reshard):
                named.add(maker[slot])
                slot = move.source
    return named


def _within_micro_batches(
    tensors: SavedTensors, named: set[int], stage: int, chunks: Mapping[int, int]
) -> tuple[set[int], frozenset[int]]:
    """Return the steps among ``named`` that can be done again within a micro-batch, and those that
    are then done for each micro-batch."""
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
    inner: set[int] = set()
    for number in named:
        step = steps[number]
        users = {user for slot in step.results for user in readers.get(slot, ())}
        is_split = len({user in inside for user in (number, *users)}) > 1
        # A step that is done for each micro-batch belongs to the chunk that reads it.
        is_split |= len({chunks.get(index) for index in (number, *users) if index not in moved}) > 1
        layouts = [slot.layout for slot in (*step.operands, *step.results)]
        if not is_split and len(_stages(layouts, stage)) == 1:
            inner.add(number)
    return inner, frozenset(moved & inner)


def _is_sliced(step: Step) -> bool:
    return any(map(is_sliced, (*step.operands, *step.results)))


def _stages(layouts: Collection[Layout], stage: int) -> set[int]:
    return set[int]().union(*(layout.groups(stage) for layout in layouts))


def _steps_before(tensors: SavedTensors, named: set[int]) -> dict[int, list[int]]:
    """Return, by step, the steps that are done again right before its backward pass."""
    done: set[int] = set()
    before: dict[int, list[int]] = {}
    for reader in range(len(tensors.steps) - 1, -1, -1):
        wanted = list(tensors.reads[reader])
        if reader in named and tensors.needs[reader] is not None:
            wanted += tensors.made(reader) if isinstance(tensors.steps[reader], Compute) else ()
        while wanted:
            step = tensors.maker[wanted.pop()]
            if step in named and step not in done:
                done.add(step)
                before.setdefault(reader, []).append(step)
                wanted += tensors.read(step)
    return before


def _moved_ahead(
    tensors: SavedTensors,
    before: Mapping[int, list[int]],
    moved: frozenset[int],
    chunks: Mapping[int, int],
) -> Mapping[int, tuple[int, ...]]:
    """Return the same with communication moved ahead: to the end of the run of computations that
    contains the reader, and each gather of weights to the position of the gather before it on its
    devices."""
    placed: dict[int, list[int]] = {}
    last: dict[tuple[object, ...], int] = {}
    for reader in sorted(before, reverse=True):
        latest: dict[tuple[object, ...], int] = {}
        for step in before[reader]:
            moves = isinstance(tensors.steps[step], Reshard)
            place = _end_of_run(tensors.steps, reader, chunks) if moves else reader
            devices = _gathered(tensors, step)
            if devices is not None:
                key = devices, step in moved, chunks.get(reader)
                place, latest[key] = last.get(key, place), place
            placed.setdefault(place, []).append(step)
        last |= latest
    return {reader: tuple(sorted(steps)) for reader, steps in placed.items()}


def _end_of_run(steps: Sequence[Step], number: int, chunks: Mapping[int, int]) -> int:
    """Return the last computation that follows a step on its devices and in its chunk, without
    communication in between."""
    first = steps[number]
    if not isinstance(first, Compute):
        return number
    devices, sliced = set(first.view.devices), _is_sliced(first)
    for later in range(number + 1, len(steps)):
        step = steps[later]
        if isinstance(step, LeafAtHome):
            continue
        if isinstance(step, Reshard) or _is_sliced(step) != sliced:
            break
        elsewhere = step.view != first.view and set(step.view.devices) != devices
        if elsewhere or chunks.get(later) != chunks.get(number):
            break
        number = later
    return number


def _gathered(tensors: SavedTensors, number: int) -> tuple[int, ...] | None:
    """Return the devices to which a step brings a weight from home, or None for other steps."""
    step = tensors.steps[number]
    if not isinstance(step, Reshard) or step.source not in tensors.static:
        return None
    home = tensors.steps[tensors.maker[step.source]]
    is_weight = isinstance(home, LeafAtHome) and home.slot.value.node.is_weight
    return step.target.layout.devices if is_weight else None
