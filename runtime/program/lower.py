"""Lower a plan's schedule to one program per rank.

Problem. A schedule is a list of steps on whole tensors. Each rank needs a list of instructions on
its own blocks.

Method. Each step is lowered for all ranks before the next step, so that results which several ranks
share are computed once. All ranks communicate in the order of the schedule, so none waits for ever.
Complexity. The number of steps times the number of ranks. Exact.
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
from runtime.program.homes import WeightHome, homes_of, plan_late, weights_on
from runtime.program.pipelined import PipelineProgram
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
    global_regions,
    groups_of,
    holders,
    holds,
    one_slice,
    regular_transfer,
    roles,
    sliced_exchange,
    sliced_task,
    slots_of,
    stages_are_apart,
    tail_trains,
    with_explicit_slicing,
    with_loss_in_parts,
    with_slices_joined_at_source,
)
from runtime.program.watch import Lowered, WatchedTensor, running, watches

Instructions = tuple[Instruction, ...]

_PlacedTask = tuple[KernelTask, tuple[tuple[int, ...], ...]]
"""A task, and the global index of each operand's first element."""


@dataclass(frozen=True)
class Lowering:
    """A plan that can be executed, its schedule, and the names of its registers. ``where``: the
    plan's name in error messages. Raises InputError for a plan that cannot be executed."""

    plan: Plan
    where: str = "plan"
    schedule: Schedule = field(init=False)
    _placed_tasks: dict[object, Mapping[int, _PlacedTask]] = field(
        init=False, repr=False, default_factory=dict[object, "Mapping[int, _PlacedTask]"]
    )

    def __post_init__(self) -> None:
        check_types(self.plan, self.where)
        check_leaves(self.plan, self.where)
        schedule = with_explicit_slicing(self.plan.schedule(), self.plan.graph.outputs)
        if self.plan.pipeline is not None and self.plan.pipeline.interleave > 1:
            schedule = with_slices_joined_at_source(schedule)
        object.__setattr__(self, "schedule", with_loss_in_parts(schedule))
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
        """The programs of some ranks, by default of all."""
        selected = range(self.ranks) if ranks is None else ranks
        before = self._part(self._roles.before, selected)
        pipelined = self._pipelined(selected) if self._roles.sliced else {}
        return [self._program(rank, before[rank], pipelined.get(rank)) for rank in selected]

    def _program(
        self, rank: int, instructions: Instructions, pipelined: PipelineProgram | None
    ) -> Program:
        piece = self.loss.layout.by_device.get(rank)
        counts = piece is not None and self.loss.layout.holders[piece][0] == rank
        statistics = tuple(running(self.plan, self._watches, rank, self._names))
        parts = [statistic.piece for statistic in statistics if statistic.piece is not None]
        statistics_shapes = {
            name: (stop - start,)
            for part in parts
            for name in part.registers
            for start, stop in (part.channels,)
        }
        return Program(
            rank,
            self.ranks,
            instructions,
            {name: own[rank] for name, own in self._shapes if rank in own} | statistics_shapes,
            frozenset(name for name, holders in self._active_names if rank in holders),
            tuple(weights_on(self._homes, rank)),
            self.register(self.loss) if counts else None,
            (
                *(self.register(slot) for slot in self.schedule.outputs if holds(slot, rank)),
                *statistics_shapes,
            ),
            groups_of(self.schedule),
            pipelined,
            statistics,
            self._wide_names | statistics_shapes.keys(),
        )

    def _part(
        self, numbers: Iterable[int], ranks: Sequence[int], part: int = 0
    ) -> Mapping[int, Instructions]:
        """Lower steps of the schedule, by number, for slice ``part``, by rank."""
        parts: dict[int, list[Instruction]] = {rank: [] for rank in ranks}
        due: list[int] = []
        last, last_chunk = 0, None

        def add(lowered: Lowered) -> None:
            for rank, instruction in lowered:
                parts[rank].append(instruction)

        for number in numbers:
            step, place = self.schedule.steps[number], self._places[number]
            chunk = self._chunks.steps.get(number) if self._chunks else None
            if isinstance(step, steps.Reshard) or chunk != last_chunk:
                add(self._communicated_again(due, last, ranks, part))
                due.clear()
            lowered = self._lower(place, step, ranks, part)
            for watch in self._watched.get(number, ()):
                lowered = watch.added(lowered, ranks, self.register(watch.slot))
            add(lowered)
            due += reversed(self._again.before.get(number, ()))
            last, last_chunk = place, chunk
        add(self._communicated_again(due, last, ranks, part))
        return {rank: tuple(instructions) for rank, instructions in parts.items()}

    def _communicated_again(
        self, numbers: Iterable[int], place: int, ranks: Sequence[int], part: int
    ) -> Lowered:
        """The communications among the steps ``numbers``, the last one first, that the backward
        pass repeats. They are repeated before the backward pass of position ``place``. No rank
        communicates between that position and the use of their results. So all ranks repeat them
        in the same order, and no segment is split."""
        for repeated in numbers:
            step = self.schedule.steps[repeated]
            if isinstance(step, steps.Reshard):
                for rank, instruction in self._reshard(self._places[repeated], step, ranks, part):
                    if isinstance(instruction, Communication) and not is_local(instruction):
                        yield rank, Repeat(instruction, place)

    def _pipelined(self, ranks: Sequence[int]) -> Mapping[int, PipelineProgram]:
        pipeline, parts = self.plan.pipeline, self._roles
        assert pipeline is not None, "check_types has refused slices without a pipeline"
        slices = [self._part(parts.sliced, ranks, part) for part in range(pipeline.micro_batches)]
        tail = self._part(parts.tail, ranks)
        per_stage = self.ranks // pipeline.stages
        order = pipeline.stages, pipeline.micro_batches, pipeline.interleave, pipeline.schedule
        numbers = {place: number for number, place in self._places.items()}
        chunks = self._chunks, pipeline.interleave
        channels = channels_of(self._chunks, self.schedule)
        is_delayed = pipeline.schedule == "2bw"
        groups = groups_of(self.schedule)
        overlaps_batches = is_delayed and stages_are_apart(self.schedule, parts, groups, per_stage)
        return {
            rank: PipelineProgram(
                tuple(by_rank[rank] for by_rank in slices),
                tuple(turns(rank // per_stage, *order)),
                tuple(sorted(self.register(slot) for slot in parts.joined if holds(slot, rank))),
                tail[rank],
                tail_trains(self.schedule, parts, self._active),
                is_delayed,
                pipeline.stages,
                overlaps_batches,
                chunk_ends(*chunks, rank // per_stage, numbers, slices[0][rank]),
                channels,
            )
            for rank in ranks
        }

    def collect(self, slot: Slot, copy: int, rank: int) -> Exchange:
        """A rank's instruction to gather a whole tensor on rank 0, in the register "whole". Each
        piece comes from its holder number ``copy``."""
        source = one_copy(slot.layout, copy)
        whole = ParallelTensor.whole(slot.layout.type.shape)
        target = Layout(whole, ((0, Piece(0, (0,) * whole.rank)),))
        return exchange(transfer(source, target), rank, self.register(slot), "whole")

    def home(self, node: Node) -> Slot:
        """The slot in which a weight is stored."""
        return Slot(node.value(), self.schedule.homes[node])

    @cached_property
    def _watches(self) -> Mapping[str, WatchedTensor]:
        return watches(self.plan, self.schedule)

    @cached_property
    def _watched(self) -> Mapping[int, tuple[WatchedTensor, ...]]:
        """The tensors whose statistics each step computes, by number of the step."""
        watched: dict[int, tuple[WatchedTensor, ...]] = {}
        for watch in dict.fromkeys(self._watches.values()):
            watched[watch.number] = (*watched.get(watch.number, ()), watch)
        return watched

    @cached_property
    def _again(self) -> RecomputedSteps:
        return plan_again(self.plan, self.schedule, self.where)

    @cached_property
    def _moved_again(self) -> frozenset[int]:
        """The positions of the steps that the backward pass repeats."""
        return frozenset(self._places[number] for number in self._again.held_from())

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
        """All slots, in the order of the schedule."""
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
        """The slots that depend on a weight and on which the loss depends."""
        return gradients(self.schedule).slots

    @cached_property
    def _wide_names(self) -> frozenset[str]:
        wide = wide_values(self.plan.graph)
        return frozenset(self.register(slot) for slot in self._slots if slot.value in wide)

    @cached_property
    def _places(self) -> Mapping[int, int]:
        """The position of each step, by number, as ``runtime.program.program`` defines it."""
        parts = self._roles
        order = (*parts.before, *parts.tail, *parts.sliced)
        return {number: place for place, number in enumerate(order)}

    @cached_property
    def _shapes(self) -> tuple[tuple[str, Mapping[int, tuple[int, ...]]], ...]:
        """For each register: the shape of each rank's block of a slice."""
        shapes: dict[Layout, Mapping[int, tuple[int, ...]]] = {}
        for layout in dict.fromkeys(slot.layout for slot in self._slots):
            sliced = one_slice(layout)
            shapes[layout] = {rank: extent(region) for rank, region in sliced.regions.items()}
        return tuple((self.register(slot), shapes[slot.layout]) for slot in self._slots)

    @cached_property
    def _active_names(self) -> tuple[tuple[str, Container[int]], ...]:
        return tuple((self.register(slot), slot.layout.by_device) for slot in self._active)

    @cached_property
    def _homes(self) -> tuple[WeightHome, ...]:
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
                if (instruction := collective(regular, rank, *names, number)) is not None:
                    yield rank, instruction
            return
        for rank in ranks:
            has_source, has_target = holds(source, rank), holds(target, rank)
            if has_source or has_target:
                messages = (
                    exchange(regular, rank, *names)
                    if regular is not None
                    else sliced_exchange(source, target, rank, part)
                )
                recomputed = is_local(messages) and number in self._moved_again
                yield (
                    rank,
                    replace(
                        messages,
                        source=names[0] if has_source else None,
                        target=names[1] if has_target else None,
                        active=target in self._active,
                        position=number,
                        recomputed=recomputed,
                        stages=self._ends.get(number),
                    ),
                )

    def _run(self, number: int, step: steps.Compute, ranks: Sequence[int], part: int) -> Lowered:
        placed_tasks = self._tasks(step, part)
        call = concrete(step.node.operator_call, self.where)
        operands = tuple(self.register(slot) for slot in step.operands)
        results = tuple(self.register(slot) for slot in step.results)
        recomputed = step.node in self.plan.recompute and can_be_recomputed(step.node)
        late = self._late.get(number)
        for rank in ranks:
            placed_task = placed_tasks.get(rank)
            if placed_task is not None:
                yield rank, Run(call, *placed_task, operands, results, recomputed, number, late)

    def _tasks(self, step: steps.Compute, part: int) -> Mapping[int, _PlacedTask]:
        """Each device's task. Steps with the same signature, view and layouts share the result."""
        layouts = tuple(slot.layout for slot in step.operands)
        key = step.node.signature, step.view, layouts, part
        placed_tasks = self._placed_tasks.get(key)
        if placed_tasks is None:
            values = concrete(step.node.operator_call, self.where).values
            placed_tasks = self._placed_tasks[key] = {
                device: (
                    replace(sliced_task(step.node, task, part), attributes=values),
                    tuple(starts_of(global_regions(layout, part)[device]) for layout in layouts),
                )
                for device, task in tasks(step.node, step.view)
            }
        return placed_tasks
