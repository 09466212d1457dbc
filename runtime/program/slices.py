"""Sort the steps of a pipelined schedule by their role, and cut layouts and tasks to slices.

A slice is a micro-batch. If a dimension of size s is cut in t slices, slice j begins at index
j s/t. Within a slice the dimension is cut over devices.

Steps that read no samples run once per training step, before the slices. Steps that join the slices
are the *tail*, which runs once after the last slice. The tail has to be linear in the tensors that
it joins. Then their gradients depend on no sample and are known before the first slice, so that the
backward pass of a slice need not wait for other slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from pcg.errors import InputError
from pcg.graph.graph import Node, Value
from pcg.placement.layout import Layout, Piece
from pcg.placement.recomputation import is_sliced
from pcg.placement.region import Region, intersection, within
from pcg.placement.schedule import Compute, LeafAtHome, Reshard, Schedule, Slot, Step
from pcg.placement.transfer import Transfer, transfer
from pcg.types.task import KernelTask
from pcg.types.tensor import ParallelTensor
from runtime.program.communication import NOTHING, by_rank, pattern
from runtime.program.program import Exchange, Group


@dataclass(frozen=True)
class Roles:
    """The numbers of a schedule's steps by role, and the slots that join slices for the tail."""

    before: tuple[int, ...]
    sliced: tuple[int, ...]
    tail: tuple[int, ...]
    joined: frozenset[Slot]


def slots_of(schedule: Schedule) -> tuple[Slot, ...]:
    """All slots of a schedule, in the order of its steps."""
    return tuple(dict.fromkeys(slot for step in schedule.steps for slot in step.results))


def with_explicit_slicing(schedule: Schedule, outputs: Iterable[Value]) -> Schedule:
    """The schedule with a resharding wherever a tensor is cut in slices or slices are joined.

    The original schedule has no resharding if all data stays on its device, because its slots say
    where a tensor lies and not when.
    """
    steps: list[Step] = []
    produced: set[Slot] = set()

    def with_slices_of(slot: Slot, expected: ParallelTensor) -> Slot:
        slices = expected.degrees.slices
        if slot.layout.type.degrees.slices == slices:
            return slot
        tensor = replace(slot.layout.type, degrees=replace(slot.layout.type.degrees, slices=slices))
        target = Slot(slot.value, Layout(tensor, slot.layout.pieces))
        if target not in produced:
            produced.add(target)
            steps.append(Reshard(slot, target))
        return target

    for step in schedule.steps:
        if isinstance(step, Compute):
            types = [value.type for value in step.node.inputs]
            operands = tuple(
                with_slices_of(s, t) for s, t in zip(step.operands, types, strict=True)
            )
            step = replace(step, operands=operands)
        steps.append(step)
    output_slots = tuple(
        with_slices_of(slot, value.type)
        for slot, value in zip(schedule.outputs, outputs, strict=True)
    )
    return replace(schedule, steps=tuple(steps), outputs=output_slots)


def with_slices_joined_at_source(schedule: Schedule) -> Schedule:
    """The schedule with slices joined on the devices that produce them. The joined tensor then
    moves to other devices as a whole.

    Otherwise an earlier stage that reads slices of a later one would wait for each of them, and
    could not be ahead of the later stage.
    """
    steps: list[Step] = []
    produced: set[Slot] = {slot for step in schedule.steps for slot in step.results}
    for step in schedule.steps:
        if isinstance(step, Reshard) and is_sliced(step.source) and not is_sliced(step.target):
            source, target = step.source.layout, step.target.layout
            if not set(target.devices) <= set(source.devices):
                degrees = replace(source.type.degrees, slices=target.type.degrees.slices)
                joined = Layout(replace(source.type, degrees=degrees), source.pieces)
                between = Slot(step.source.value, joined)
                if between not in produced:
                    produced.add(between)
                    steps.append(Reshard(step.source, between))
                step = Reshard(between, step.target)
        steps.append(step)
    return replace(schedule, steps=tuple(steps))


def with_loss_in_parts(schedule: Schedule) -> Schedule:
    """The schedule without a last resharding that only adds up the parts of the loss.

    Each part has the gradient 1 anyway. Without the resharding no rank waits for other parts before
    its backward pass. The parts are added up at the end of the training step.
    """
    loss, *other_outputs = schedule.outputs
    for number, step in enumerate(schedule.steps):
        if not isinstance(step, Reshard) or step.target != loss:
            continue
        rest = (*schedule.steps[:number], *schedule.steps[number + 1 :])
        read = {slot for other in rest for slot in other.operands}
        whole = loss.layout.type.pieces == 1
        if loss in read or loss in other_outputs or not whole or is_sliced(step.source):
            return schedule
        return replace(schedule, steps=rest, outputs=(step.source, *other_outputs))
    return schedule


def roles(schedule: Schedule, where: str, repeated: frozenset[int] = frozenset()) -> Roles:
    """The roles of all steps. ``repeated``: steps that read no slice, but run once per slice.

    Raises InputError for a tail that is not linear, for a weight that is stored in slices, and for
    slices that cannot be executed.
    """
    before: list[int] = []
    sliced: list[int] = []
    tail: list[int] = []
    after_slices: set[Slot] = set()
    joined: set[Slot] = set()
    for number, step in enumerate(schedule.steps):
        operands, results = step.operands, step.results
        if number in repeated:
            sliced.append(number)
        elif any(map(is_sliced, (*operands, *results))):
            _check_sliced(step, where)
            if isinstance(step, Reshard) and not is_sliced(step.target):
                joined.add(step.target)
            sliced.append(number)
        elif after_slices.union(joined).isdisjoint(operands):
            before.append(number)
        else:
            if isinstance(step, Compute):
                _check_linear(step, after_slices | joined, where)
            after_slices.update(results)
            tail.append(number)
    return Roles(tuple(before), tuple(sliced), tuple(tail), frozenset(joined))


def one_slice(layout: Layout) -> Layout:
    """The layout of a single slice, as a tensor of its own. For a tensor without slices, its own
    layout."""
    return layout.one_slice or layout


def first_index(layout: Layout, number: int) -> tuple[int, ...]:
    """The global index of the first element of a slice."""
    tensor = layout.type
    return tuple(
        number * (s // t) if t > 1 else 0
        for s, t in zip(tensor.shape, tensor.degrees.slices, strict=True)
    )


@lru_cache(maxsize=4096)
def global_regions(layout: Layout, number: int) -> Mapping[int, Region]:
    """The global indices of each device's block of a slice, by device."""
    firsts = first_index(layout, number)
    shifted = {
        part: tuple((start + f, stop + f) for (start, stop), f in zip(part, firsts, strict=True))
        for part in set(one_slice(layout).regions.values())
    }
    return {device: shifted[part] for device, part in one_slice(layout).regions.items()}


def sliced_task(node: Node, task: KernelTask, number: int) -> KernelTask:
    """A device's task on one slice: the index of samples is cut in slices first, and each slice is
    cut over devices."""
    ranks = tuple(value.rank for value in node.inputs)
    for axis in node.operator_call.typing(ranks).axes:
        for value, dim in zip(node.inputs, axis.operands, strict=True):
            if dim is None or (times := value.type.degrees.slices[dim]) == 1:
                continue
            length = task.length(axis.name) // times
            first = number * (task.sizes[axis.name] // times)
            place = first + task.start(axis.name) // times
            return replace(task, ranges={**task.ranges, axis.name: (place, place + length)})
    return task


def sliced_exchange(source: Slot, target: Slot, rank: int, number: int) -> Exchange:
    """A rank's part of cutting a slice out of a tensor, or of putting one into a tensor. Only the
    elements of the slice move. Regions are relative to the first element of a rank's block."""
    return _exchanges(source.layout, target.layout, number).get(rank, NOTHING)


@lru_cache(maxsize=4096)
def _exchanges(source: Layout, target: Layout, number: int) -> Mapping[int, Exchange]:
    return by_rank(
        (
            sender,
            receiver,
            within(region, global_regions(source, number)[sender]),
            within(region, global_regions(target, number)[receiver]),
        )
        for sender, receiver, region in _messages(source, target, number)
    )


def _messages(source: Layout, target: Layout, number: int) -> Iterable[tuple[int, int, Region]]:
    """The messages of a slice, as (sender, receiver, global region). Partials add up at the
    receiver."""
    group = source.type.degrees.partials // target.type.degrees.partials
    source_slice = one_slice(source)
    blocks = list(product(*map(range, source_slice.type.degrees.dims)))
    for receiver, piece in target.pieces:
        expected = global_regions(target, number)[receiver]
        for j, block in product(range(group), blocks):
            holders = source_slice.holders[Piece(piece.partial * group + j, block)]
            sender = receiver if receiver in holders else holders[receiver % len(holders)]
            region = intersection(expected, global_regions(source, number)[sender])
            if region is not None:
                yield sender, receiver, region


def _check_sliced(step: Step, where: str) -> None:
    """Raise InputError for a sliced step that the runtime cannot execute."""
    operands, results = step.operands, step.results
    for slot in (*operands, *results):
        cut = [t for t in slot.layout.type.degrees.slices if t > 1]
        if len(cut) > 1:
            problem = f"{slot.layout.type} is cut in slices along {len(cut)} dimensions, expected 1"
            raise InputError(where, f"{slot.value.node.name}: {problem}")
    if isinstance(step, LeafAtHome) and step.slot.value.node.leaf.kind == "weight":
        problem = "a weight is stored in slices, expected pieces in space only"
        raise InputError(where, f"{step.slot.value.node.leaf.name}: {problem}")
    if isinstance(step, Reshard):
        a, b = (slot.layout.type.degrees.slices for slot in (step.source, step.target))
        if is_sliced(step.source) and is_sliced(step.target) and a != b:
            problem = f"goes from slices {list(a)} to {list(b)}, expected the same ones"
            raise InputError(where, f"{step.source.value.node.name}: {problem}")


def _check_linear(step: Compute, after_slices: set[Slot], where: str) -> None:
    """Raise InputError for a step of the tail that is not linear in the joined slices."""
    node = step.node
    if node.operator_call.operator.parallel is not None:
        return
    ranks = tuple(value.rank for value in node.inputs)
    reads = frozenset(i for i, slot in enumerate(step.operands) if slot in after_slices)
    if reads not in node.operator_call.typing(ranks).carriers:
        problem = "joins slices and is not linear in them, so none can go back before the last"
        raise InputError(where, f"{node.name}: {problem}")


def tail_trains(schedule: Schedule, parts: Roles, active: frozenset[Slot]) -> bool:
    """Whether the tail has gradients for other slots than the joined slices. Then its backward pass
    runs a second time, with the values of the slices."""
    after_slices = set(parts.joined)
    for number in parts.tail:
        after_slices.update(schedule.steps[number].results)
    read = {slot for number in parts.tail for slot in schedule.steps[number].operands}
    return not active.isdisjoint(read - after_slices)


def stages_are_apart(
    schedule: Schedule, parts: Roles, groups: Iterable[Group], devices: int
) -> bool:
    """Whether only slices pass between stages of ``devices`` devices each, and only to later
    stages. If not, slices of the next batch must not start before this batch has ended.

    Stages run the end of a batch and the beginning of the next one in different orders. So nothing
    of either may pass between stages. And an earlier stage that waited for a later one in a slice
    of the next batch would not receive the last gradients of this batch from it.
    """

    def stages(ranks: Iterable[int]) -> set[int]:
        return {device // devices for device in ranks}

    spans = [stages(group) for group in groups]
    for number, step in enumerate(schedule.steps):
        if not isinstance(step, Reshard):
            continue
        source, target = (stages(s.layout.devices) for s in (step.source, step.target))
        if number in parts.tail or number in parts.before:
            spans.append(source | target)
        elif max(source) > min(target):
            return False
    return all(len(span) == 1 for span in spans)


@lru_cache(maxsize=4)
def groups_of(schedule: Schedule) -> tuple[Group, ...]:
    """The groups of all collectives, and those that sum gradients of weights."""
    groups: set[Group] = set()
    for step in schedule.steps:
        if isinstance(step, Reshard) and (regular := regular_transfer(step)) is not None:
            kind_and_groups = pattern(regular)
            groups.update(kind_and_groups[1] if kind_and_groups else ())
    for layout in schedule.homes.values():
        groups.update(layout.holders.values())
    return tuple(sorted(group for group in groups if len(group) > 1))


def regular_transfer(step: Reshard) -> Transfer | None:
    """A resharding as the transfer of a tensor, or of each of its slices. None if it cuts a tensor
    in slices or joins slices."""
    if is_sliced(step.source) != is_sliced(step.target):
        return None
    return transfer(one_slice(step.source.layout), one_slice(step.target.layout))


def holders(slot: Slot, ranks: Iterable[int]) -> Iterable[int]:
    """The ranks among ``ranks`` that hold a piece of a slot."""
    return (rank for rank in ranks if holds(slot, rank))


def holds(slot: Slot, rank: int) -> bool:
    """Whether a rank holds a piece of a slot."""
    return rank in slot.layout.by_device
