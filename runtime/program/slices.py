"""Sort the steps of a pipelined schedule by micro-batches, and cut layouts and tasks to them.

Slice j of a dimension of size s cut in t slices is its indices from j s/t on; within the slice the
dimension is cut over devices. What reads no samples is done once a step, before the slices; what
joins them, the *tail*, once after the last one. The tail has to be linear in what it joins: the
gradient that it hands back then depends on no sample, so that it is known before the first slice,
and a slice goes back without waiting for others.
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
    """The steps of a schedule by number, and the slots that the tail joins from slices."""

    before: tuple[int, ...]
    sliced: tuple[int, ...]
    tail: tuple[int, ...]
    joined: frozenset[Slot]


def slots_of(schedule: Schedule) -> tuple[Slot, ...]:
    """Every slot, in the order in which a schedule makes them."""
    return tuple(dict.fromkeys(slot for step in schedule.steps for slot in step.results))


def explicit(schedule: Schedule, outputs: Iterable[Value]) -> Schedule:
    """The schedule with a resharding wherever slices are joined or taken apart. One that leaves all
    on its device is none to the schedule, whose slots say where something lies and not when."""
    steps: list[Step] = []
    made: set[Slot] = set()

    def fetched(slot: Slot, wanted: ParallelTensor) -> Slot:
        slices = wanted.degrees.slices
        if slot.layout.type.degrees.slices == slices:
            return slot
        tensor = replace(slot.layout.type, degrees=replace(slot.layout.type.degrees, slices=slices))
        target = Slot(slot.value, Layout(tensor, slot.layout.pieces))
        if target not in made:
            made.add(target)
            steps.append(Reshard(slot, target))
        return target

    for step in schedule.steps:
        if isinstance(step, Compute):
            types = [value.type for value in step.node.inputs]
            operands = tuple(fetched(s, t) for s, t in zip(step.operands, types, strict=True))
            step = replace(step, operands=operands)
        steps.append(step)
    shown = tuple(
        fetched(slot, value.type) for slot, value in zip(schedule.outputs, outputs, strict=True)
    )
    return replace(schedule, steps=tuple(steps), outputs=shown)


def joined_where_made(schedule: Schedule) -> Schedule:
    """The schedule with slices joined on the devices that have them, and moved from there to others
    as a whole. A stage that waited for each slice from a later one would be ahead of it no more."""
    steps: list[Step] = []
    made: set[Slot] = {slot for step in schedule.steps for slot in step.results}
    for step in schedule.steps:
        if isinstance(step, Reshard) and is_sliced(step.source) and not is_sliced(step.target):
            source, target = step.source.layout, step.target.layout
            if not set(target.devices) <= set(source.devices):
                degrees = replace(source.type.degrees, slices=target.type.degrees.slices)
                joined = Layout(replace(source.type, degrees=degrees), source.pieces)
                between = Slot(step.source.value, joined)
                if between not in made:
                    made.add(between)
                    steps.append(Reshard(step.source, between))
                step = Reshard(between, step.target)
        steps.append(step)
    return replace(schedule, steps=tuple(steps))


def with_loss_in_parts(schedule: Schedule) -> Schedule:
    """The schedule without a last resharding that would only put the loss together.

    Each part of it has the gradient 1 anyway, and no rank need wait for another's before it starts
    in the backward pass; parts are added up when the step has ended.
    """
    loss, *others = schedule.outputs
    for number, step in enumerate(schedule.steps):
        if not isinstance(step, Reshard) or step.target != loss:
            continue
        rest = (*schedule.steps[:number], *schedule.steps[number + 1 :])
        read = {slot for other in rest for slot in other.operands}
        whole = loss.layout.type.pieces == 1
        if loss in read or loss in others or not whole or is_sliced(step.source):
            return schedule
        return replace(schedule, steps=rest, outputs=(step.source, *others))
    return schedule


def roles(schedule: Schedule, where: str, repeated: frozenset[int] = frozenset()) -> Roles:
    """The roles of all steps. ``repeated``: those that are done for each slice and read none.
    Raises InputError for a tail that is not linear, and for a weight that is stored in slices."""
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    late: set[Slot] = set()
    joined: set[Slot] = set()
    for number, step in enumerate(schedule.steps):
        operands, results = step.operands, step.results
        if number in repeated:
            parts[1].append(number)
        elif any(map(is_sliced, (*operands, *results))):
            _check_sliced(step, where)
            if isinstance(step, Reshard) and not is_sliced(step.target):
                joined.add(step.target)
            parts[1].append(number)
        elif late.union(joined).isdisjoint(operands):
            parts[0].append(number)
        else:
            if isinstance(step, Compute):
                _check_linear(step, late | joined, where)
            late.update(results)
            parts[2].append(number)
    before, sliced, tail = map(tuple, parts)
    return Roles(before, sliced, tail, frozenset(joined))


def one_slice(layout: Layout) -> Layout:
    """Where a slice of a tensor lies, as a tensor of its own; of one without slices, all of it."""
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
    """By device, the global indices of its piece of a slice."""
    firsts = first_index(layout, number)
    moved = {
        part: tuple((start + f, stop + f) for (start, stop), f in zip(part, firsts, strict=True))
        for part in set(one_slice(layout).regions.values())
    }
    return {device: moved[part] for device, part in one_slice(layout).regions.items()}


def sliced_task(node: Node, task: KernelTask, number: int) -> KernelTask:
    """A device's task on one slice: the cut index of the samples is cut again, in time first."""
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
    """A rank's part in moving a slice out of a whole tensor, or into one: only what lies in the
    slice is moved, and places are counted from the first elements of the pieces held."""
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
    """(sender, receiver, global region) of all that is moved; partials add up where they meet."""
    group = source.type.degrees.partials // target.type.degrees.partials
    own = one_slice(source)
    for receiver, piece in target.pieces:
        wanted = global_regions(target, number)[receiver]
        for j, block in product(range(group), product(*map(range, own.type.degrees.dims))):
            holders = own.holders[Piece(piece.partial * group + j, block)]
            sender = receiver if receiver in holders else holders[receiver % len(holders)]
            region = intersection(wanted, global_regions(source, number)[sender])
            if region is not None:
                yield sender, receiver, region


def _check_sliced(step: Step, where: str) -> None:
    """Only what the slices of samples ask for is executed."""
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


def _check_linear(step: Compute, late: set[Slot], where: str) -> None:
    node = step.node
    if node.operator_call.operator.parallel is not None:
        return
    ranks = tuple(value.rank for value in node.inputs)
    reads = frozenset(i for i, slot in enumerate(step.operands) if slot in late)
    if reads not in node.operator_call.typing(ranks).carriers:
        problem = "joins slices and is not linear in them, so none can go back before the last"
        raise InputError(where, f"{node.name}: {problem}")


def tail_trains(schedule: Schedule, parts: Roles, active: frozenset[Slot]) -> bool:
    """Whether the tail has gradients for anything but the slices: then its backward pass has to be
    taken once more, with the values of the slices."""
    late = set(parts.joined)
    for number in parts.tail:
        late.update(schedule.steps[number].results)
    read = {slot for number in parts.tail for slot in schedule.steps[number].operands}
    return not active.isdisjoint(read - late)


def stages_are_apart(
    schedule: Schedule, parts: Roles, groups: Iterable[Group], devices: int
) -> bool:
    """Whether nothing but slices passes between stages of so many devices, and that to later ones
    alone. Stages take what follows the slices of a batch, and what begins the next one, in
    different orders; and an earlier stage that waited for a later one with slices of the next
    batch, or with what comes before them, would not take the last gradients of this one from it."""

    def stages(own: Iterable[int]) -> set[int]:
        return {device // devices for device in own}

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
    """The groups of all collectives, and those that share gradients of weights."""
    groups: set[Group] = set()
    for step in schedule.steps:
        if isinstance(step, Reshard) and (regular := regular_transfer(step)) is not None:
            known = pattern(regular)
            groups.update(known[1] if known else ())
    for layout in schedule.homes.values():
        groups.update(layout.holders.values())
    return tuple(sorted(group for group in groups if len(group) > 1))


def regular_transfer(step: Reshard) -> Transfer | None:
    """A resharding as the transfer of a tensor, or of each of its slices; None where slices are
    taken out of a whole or put into one."""
    if is_sliced(step.source) != is_sliced(step.target):
        return None
    return transfer(one_slice(step.source.layout), one_slice(step.target.layout))


def holders(slot: Slot, ranks: Iterable[int]) -> Iterable[int]:
    """Those of some ranks that hold a piece."""
    return (rank for rank in ranks if holds(slot, rank))


def holds(slot: Slot, rank: int) -> bool:
    """Whether a rank holds a piece."""
    return rank in slot.layout.by_device
