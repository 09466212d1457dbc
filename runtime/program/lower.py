"""Lower a plan's schedule to one program a rank.

Problem: a schedule says what happens to whole tensors, and each rank needs a list of what it does
with its own pieces. Method: each step becomes the instructions of all ranks before the next one
does, so that what ranks have in common is worked out once. All ranks communicate in the order of
the schedule, so none waits for ever. Complexity: steps times ranks. All is exact.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pcg.graph.graph import Node
from pcg.placement import schedule as steps
from pcg.placement.backward import gradients
from pcg.placement.late import LateGradient
from pcg.placement.layout import Layout, Piece, tasks
from pcg.placement.recomputation import RecomputedSteps, can_be_recomputed
from pcg.placement.region import extent, starts_of
from pcg.placement.schedule import Schedule, Slot
from pcg.placement.transfer import transfer
from pcg.plan.chunks import Chunks, ordered
from pcg.plan.pipeline import turns
from pcg.plan.plan import Plan
from pcg.plan.text import node_names
from pcg.readings.formats import wide_values
from pcg.types.task import KernelTask
from pcg.types.tensor import ParallelTensor
from runtime.program.chunked import channels_of, chunk_ends, ends_of, plan_again, plan_chunks
from runtime.program.communication import collective, exchange, one_copy, pattern
from runtime.program.executable import check_devices, check_leaves, check_types, concrete
from runtime.program.homes import Home, homes_of, plan_late, weights_on
from runtime.program.pipelined import Pipelined
from runtime.program.program import (
    Alias,
    Communication,
    Exchange,
    Instruction,
    Load,
    Program,
    Repeat,
    Run,
    is_local,
)
from runtime.program.slices import (
    Roles,
    explicit,
    global_regions,
    groups_of,
    holders,
    holds,
    joined_where_made,
    one_slice,
    regular_transfer,
    roles,
    sliced_exchange,
    sliced_task,
    slots_of,
    stages_are_apart,
    tail_trains,
    with_loss_in_parts,
)
from runtime.program.watch import Lowered, WatchedTensor, running, watches

Instructions = tuple[Instruction, ...]

_Placed = tuple[KernelTask, tuple[tuple[int, ...], ...]]
"""A task, and where its operands start."""


@dataclass(frozen=True)
class Lowering:
    """A plan that can be executed, its schedule, and the names of its registers.

    Raises InputError, naming the plan, when the plan is one that cannot be executed.
    """

    plan: Plan
    where: str = "plan"
    schedule: Schedule = field(init=False)
    _placed: dict[object, Mapping[int, _Placed]] = field(
        init=False, repr=False, default_factory=dict[object, "Mapping[int, _Placed]"]
    )

    def __post_init__(self) -> None:
        check_types(self.plan, self.where)
        check_leaves(self.plan, self.where)
        made = steps.schedule(self.plan.graph, self.plan.views)
        made = explicit(made, self.plan.graph.outputs)
        if self.plan.pipeline is not None and self.plan.pipeline.interleave > 1:
            made = joined_where_made(made)
        object.__setattr__(self, "schedule", with_loss_in_parts(made))
        check_devices(self._slots, self.ranks, self.where)

    @property
    def ranks(self) -> int:
        return self.plan.machine.devices

    @property
    def loss(self) -> Slot:
        return self.schedule.outputs[0]

    def program(self, rank: int) -> Program:
        """The program of one rank."""
        return self.programs([rank])[0]

    def programs(self, ranks: Sequence[int] | None = None) -> list[Program]:
        """The programs of some ranks, of all by default. What they have in common is worked out
        once, and each step is lowered for all of them before the next."""
        chosen = range(self.ranks) if ranks is None else ranks
        before = self._part(self._roles.before, chosen)
        pipelined = self._pipelined(chosen) if self._roles.sliced else {}
        return [self._program(rank, before[rank], pipelined.get(rank)) for rank in chosen]

    def _program(
        self, rank: int, instructions: Instructions, pipelined: Pipelined | None
    ) -> Program:
        held = self.loss.layout.by_device.get(rank)
        counts = held is not None and self.loss.layout.holders[held][0] == rank
        kept = tuple(running(self.plan, self._watches, rank, self._names))
        pieces = [record.piece for record in kept if record.piece is not None]
        taken = {
            name: (stop - start,)
            for piece in pieces
            for name in piece.registers
            for start, stop in (piece.channels,)
        }
        return Program(
            rank,
            self.ranks,
            instructions,
            {name: own[rank] for name, own in self._shapes if rank in own} | taken,
            frozenset(name for name, held in self._active_names if rank in held),
            tuple(weights_on(self._homes, rank)),
            self.register(self.loss) if counts else None,
            (
                *(self.register(slot) for slot in self.schedule.outputs if holds(slot, rank)),
                *taken,
            ),
            groups_of(self.schedule),
            pipelined,
            kept,
            self._wide_names | taken.keys(),
        )

    def _part(
        self, numbers: Iterable[int], ranks: Sequence[int], part: int = 0
    ) -> Mapping[int, Instructions]:
        """Some steps of the schedule, as each of some ranks takes them with a slice."""
        parts: dict[int, list[Instruction]] = {rank: [] for rank in ranks}
        due: list[int] = []
        last, before = 0, None

        def add(lowered: Lowered) -> None:
            for rank, instruction in lowered:
                parts[rank].append(instruction)

        for number in numbers:
            step, place = self.schedule.steps[number], self._places[number]
            chunk = self._chunks.steps.get(number) if self._chunks else None
            if isinstance(step, steps.Reshard) or chunk != before:
                add(self._communicated_again(due, last, ranks, part))
                due.clear()
            lowered = self._lower(place, step, ranks, part)
            for watch in self._watched.get(number, ()):
                lowered = watch.added(lowered, ranks, self.register(watch.slot))
            add(lowered)
            due += reversed(self._again.before.get(number, ()))
            last, before = place, chunk
        add(self._communicated_again(due, last, ranks, part))
        return {rank: tuple(own) for rank, own in parts.items()}

    def _communicated_again(
        self, numbers: Iterable[int], place: int, ranks: Sequence[int], part: int
    ) -> Lowered:
        """Of some steps, the last first, what ranks communicate again before the backward pass of
        all up to a place. That is as early as no rank communicates in between: so all ranks do it
        in the same order, and no segment of theirs is parted."""
        for made in numbers:
            step = self.schedule.steps[made]
            if isinstance(step, steps.Reshard):
                for rank, own in self._reshard(self._places[made], step, ranks, part):
                    if isinstance(own, Communication) and not is_local(own):
                        yield rank, Repeat(own, place)

    def _pipelined(self, ranks: Sequence[int]) -> Mapping[int, Pipelined]:
        given, parts = self.plan.pipeline, self._roles
        assert given is not None, "checked in the beginning"
        slices = [self._part(parts.sliced, ranks, part) for part in range(given.micro_batches)]
        tail = self._part(parts.tail, ranks)
        per_stage = self.ranks // given.stages
        order = given.stages, given.micro_batches, given.interleave, given.schedule
        at = {place: number for number, place in self._places.items()}
        channels = channels_of(self._chunks, self.schedule)
        is_delayed = given.schedule == "2bw"
        groups = groups_of(self.schedule)
        runs_on = is_delayed and stages_are_apart(self.schedule, parts, groups, per_stage)
        return {
            rank: Pipelined(
                tuple(own[rank] for own in slices),
                tuple(turns(rank // per_stage, *order)),
                tuple(sorted(self.register(slot) for slot in parts.joined if holds(slot, rank))),
                tail[rank],
                tail_trains(self.schedule, parts, self._active),
                is_delayed,
                given.stages,
                runs_on,
                chunk_ends(self._chunks, given.interleave, rank // per_stage, at, slices[0][rank]),
                channels,
            )
            for rank in ranks
        }

    def collect(self, slot: Slot, copy: int, rank: int) -> Exchange:
        """What a rank does to bring a tensor to rank 0, whole, from one copy of each piece."""
        source = one_copy(slot.layout, copy)
        whole = ParallelTensor.whole(slot.layout.type.shape)
        target = Layout(whole, ((0, Piece(0, (0,) * whole.rank)),))
        return exchange(transfer(source, target), rank, self.register(slot), "whole")

    def home(self, node: Node) -> Slot:
        """A weight where it is kept."""
        return Slot(node.value(), self.schedule.homes[node])

    @cached_property
    def _watches(self) -> Mapping[str, WatchedTensor]:
        return watches(self.plan, self.schedule)

    @cached_property
    def _watched(self) -> Mapping[int, tuple[WatchedTensor, ...]]:
        """By step of the schedule, what statistics are taken of there."""
        watched: dict[int, tuple[WatchedTensor, ...]] = {}
        for watch in dict.fromkeys(self._watches.values()):
            watched[watch.number] = (*watched.get(watch.number, ()), watch)
        return watched

    @cached_property
    def _again(self) -> RecomputedSteps:
        return plan_again(self.plan, self.schedule, self.where)

    @cached_property
    def _moved_again(self) -> frozenset[int]:
        """The places of what is done again."""
        return frozenset(self._places[made] for made in self._again.held_from())

    @cached_property
    def _roles(self) -> Roles:
        parts = roles(self.schedule, self.where, self._again.moved)
        if self._chunks is None:
            return parts
        return replace(parts, sliced=tuple(ordered(self._chunks, parts.sliced)))

    @cached_property
    def _chunks(self) -> Chunks | None:
        chunks = plan_chunks(self.plan, self.schedule, self.where)
        return chunks.with_moved(self.schedule, self._again.moved) if chunks else None

    @cached_property
    def _ends(self) -> Mapping[int, tuple[int, int]]:
        return ends_of(self._chunks, self._places)

    @cached_property
    def _slots(self) -> tuple[Slot, ...]:
        """Every slot, in the order in which the schedule makes them."""
        return slots_of(self.schedule)

    @cached_property
    def _names(self) -> Mapping[Slot, str]:
        printed = node_names(self.plan.graph)
        seen: dict[str, int] = {}
        names: dict[Slot, str] = {}
        for slot in self._slots:
            name = printed[slot.value.node][slot.value.port]
            times = seen[name] = seen.get(name, -1) + 1
            names[slot] = f"{name}.{times}" if times else name
        return names

    def register(self, slot: Slot) -> str:
        """The name of a slot's register."""
        return self._names[slot]

    @cached_property
    def _active(self) -> frozenset[Slot]:
        """Slots on a way from a weight to the loss."""
        return gradients(self.schedule).slots

    @cached_property
    def _wide_names(self) -> frozenset[str]:
        wide = wide_values(self.plan.graph)
        return frozenset(self.register(slot) for slot in self._slots if slot.value in wide)

    @cached_property
    def _places(self) -> Mapping[int, int]:
        """The position of each step, by its number: the last to add to gradients come first."""
        parts = self._roles
        order = (*parts.before, *parts.tail, *parts.sliced)
        return {number: place for place, number in enumerate(order)}

    @cached_property
    def _shapes(self) -> tuple[tuple[str, Mapping[int, tuple[int, ...]]], ...]:
        """By register, the shape of each rank's piece of a slice."""
        made: dict[Layout, Mapping[int, tuple[int, ...]]] = {}
        for layout in dict.fromkeys(slot.layout for slot in self._slots):
            own = one_slice(layout)
            made[layout] = {rank: extent(region) for rank, region in own.regions.items()}
        return tuple((self.register(slot), made[slot.layout]) for slot in self._slots)

    @cached_property
    def _active_names(self) -> tuple[tuple[str, Container[int]], ...]:
        return tuple((self.register(slot), slot.layout.by_device) for slot in self._active)

    @cached_property
    def _homes(self) -> tuple[Home, ...]:
        return homes_of(self.schedule, self._places, self.register, self._late)

    @cached_property
    def _late(self) -> Mapping[int, LateGradient]:
        return plan_late(self.plan, self.schedule, self._again.steps, self._places)

    def _lower(self, number: int, step: steps.Step, ranks: Sequence[int], part: int) -> Lowered:
        match step:
            case steps.LeafAtHome(slot):
                name, leaf = self.register(slot), slot.value.node.leaf
                regions = global_regions(slot.layout, part)
                for rank in holders(slot, ranks):
                    yield rank, Load(name, leaf, regions[rank])
            case steps.Reshard():
                yield from self._reshard(number, step, ranks, part)
            case steps.Compute() if step.node.is_join:
                (result,) = step.results
                for operand in step.operands:
                    for rank in holders(operand, ranks):
                        yield rank, Alias(self.register(operand), self.register(result), number)
            case steps.Compute():
                yield from self._run(number, step, ranks, part)

    def _reshard(
        self, number: int, step: steps.Reshard, ranks: Sequence[int], part: int
    ) -> Lowered:
        source, target = step.source, step.target
        names, regular = (self.register(source), self.register(target)), regular_transfer(step)
        if regular is not None and pattern(regular) is not None:
            for rank in ranks:
                if (own := collective(regular, rank, *names, number)) is not None:
                    yield rank, own
            return
        for rank in ranks:
            held = holds(source, rank), holds(target, rank)
            if any(held):
                made = (
                    exchange(regular, rank, *names)
                    if regular is not None
                    else sliced_exchange(source, target, rank, part)
                )
                recomputed = is_local(made) and number in self._moved_again
                yield (
                    rank,
                    replace(
                        made,
                        source=names[0] if held[0] else None,
                        target=names[1] if held[1] else None,
                        active=target in self._active,
                        position=number,
                        recomputed=recomputed,
                        stages=self._ends.get(number),
                    ),
                )

    def _run(self, number: int, step: steps.Compute, ranks: Sequence[int], part: int) -> Lowered:
        placed = self._tasks(step, part)
        call = concrete(step.node.operator_call, self.where)
        operands = tuple(self.register(slot) for slot in step.operands)
        results = tuple(self.register(slot) for slot in step.results)
        recomputed = step.node in self.plan.recompute and can_be_recomputed(step.node)
        late = self._late.get(number)
        for rank in ranks:
            own = placed.get(rank)
            if own is not None:
                yield rank, Run(call, *own, operands, results, recomputed, number, late)

    def _tasks(self, step: steps.Compute, part: int) -> Mapping[int, _Placed]:
        """Each device's task with the global index of each operand's first element: the same for
        steps that do the same in the same places."""
        layouts = tuple(slot.layout for slot in step.operands)
        key = step.node.signature, step.view, layouts, part
        placed = self._placed.get(key)
        if placed is None:
            values = concrete(step.node.operator_call, self.where).values
            placed = self._placed[key] = {
                device: (
                    replace(sliced_task(step.node, task, part), attributes=values),
                    tuple(starts_of(global_regions(layout, part)[device]) for layout in layouts),
                )
                for device, task in tasks(step.node, step.view)
            }
        return placed
