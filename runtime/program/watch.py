"""Find where in a schedule the running statistics of the model's batch norms can be taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pcg.ops.norms import batch_norm, ghost_batch_norm
from pcg.placement.region import elements, starts_of
from pcg.placement.schedule import Compute, Schedule, Slot
from pcg.plan.plan import Plan
from pcg.plan.statistics import named_values
from pcg.types.operator import Operator
from pcg.types.task import KernelTask
from runtime.program.norms import FIRST_STATISTICS, GROUP_NORM, NORM, STATISTICS
from runtime.program.program import Instruction, Run
from runtime.program.running import Running, StatisticsPart

Lowered = Iterator[tuple[int, Instruction]]
"""What ranks do in a step: each with one thing that it does, in the order in which it does them."""


@dataclass(frozen=True)
class WatchedTensor:
    """A tensor of which statistics are taken, where it lies in step ``number`` of the schedule.
    ``is_normed``: whether the step is a batch norm of it, and not the one that makes it.

    Of samples in ``groups`` the statistics are the first one's, as DistributedDataParallel keeps
    those of its first rank, whose buffers it sends to all others before they have a use.
    """

    slot: Slot
    number: int
    is_normed: bool
    groups: int = 1

    def piece(self, rank: int, name: str) -> StatisticsPart | None:
        """The part of a rank: each block counts where it is held first."""
        held = self.slot.layout.by_device.get(rank)
        if held is None or self.slot.layout.holders[held][0] != rank:
            return None
        _, channels, *others = self.slot.layout.regions[rank]
        count = self._rows(rank) * elements(tuple(others))
        if count == 0:
            return None
        return StatisticsPart((f"{name}.mean", f"{name}.variance"), channels, count)

    def _rows(self, rank: int) -> int:
        """How many of the first group's samples a rank holds. They are its first ones."""
        (first, last), *_ = self.slot.layout.regions[rank]
        end = self.slot.layout.type.shape[0] // self.groups
        return max(0, min(last, end) - first)

    def added(self, lowered: Lowered, ranks: Sequence[int], name: str) -> Lowered:
        """What ranks do in the step, and the statistics of their parts. ``name``: of the slot."""
        pieces = {rank: self.piece(rank, name) for rank in ranks}
        for rank, instruction in lowered:
            piece = pieces[rank]
            if piece is not None and self.is_normed and isinstance(instruction, Run):
                results = (*instruction.results, *piece.registers)
                kept = NORM if self.groups == 1 else GROUP_NORM
                call = kept(**instruction.call.values)
                yield rank, replace(instruction, call=call, results=results)
            else:
                yield rank, instruction
        for rank, piece in pieces.items():
            if piece is not None and not self.is_normed:
                yield rank, self._statistics(rank, piece, name)

    def _statistics(self, rank: int, piece: StatisticsPart, name: str) -> Run:
        starts = (starts_of(self.slot.layout.regions[rank]),)
        call = STATISTICS() if self.groups == 1 else FIRST_STATISTICS(rows=self._rows(rank))
        task = KernelTask(call.values, {}, {})
        return Run(call, task, starts, (name,), piece.registers, position=self.number)


def watches(plan: Plan, schedule: Schedule) -> Mapping[str, WatchedTensor]:
    """By what is normed in the model. Of a pipeline there are none."""
    if not plan.statistics or plan.pipeline is not None:
        return {}
    values, groups = named_values(plan.graph), plan.norm_groups
    norm = batch_norm if groups == 1 else ghost_batch_norm
    normed: dict[object, WatchedTensor] = {}
    made: dict[object, WatchedTensor] = {}
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Compute) and _is_norm(step, norm, groups):
            slot = step.operands[0]
            normed.setdefault(
                slot.value, WatchedTensor(slot, number, is_normed=True, groups=groups)
            )
        for slot in step.results:
            if _is_plain(slot):
                made.setdefault(
                    slot.value, WatchedTensor(slot, number, is_normed=False, groups=groups)
                )
    watched: dict[str, WatchedTensor] = {}
    for record in plan.statistics:
        value = None if record.at is None else values[record.at]
        if (watch := normed.get(value) or made.get(value)) is not None:
            watched[record.value] = watch
    return watched


def running(
    plan: Plan, watched: Mapping[str, WatchedTensor], rank: int, names: Mapping[Slot, str]
) -> Iterator[Running]:
    """What a rank knows of each of the module's running statistics."""
    values = named_values(plan.model) if plan.statistics else {}
    for record in plan.statistics:
        watch = watched.get(record.value)
        piece = None if watch is None else watch.piece(rank, names[watch.slot])
        samples, *rest = values[record.value].type.shape
        shape = (samples // plan.norm_groups, *rest)
        yield Running(record, shape, watch is not None, piece)


def _is_norm(step: Compute, norm: Operator, groups: int) -> bool:
    """Whether a step is a batch norm in so many groups."""
    call = step.node.operator_call
    return call.operator == norm and call.values.get("groups", 1) == groups


def _is_plain(slot: Slot) -> bool:
    """Whether the blocks of a slot are a tensor's, each element in one place of it."""
    degrees = slot.layout.type.degrees
    return degrees.partials == 1 and not degrees.halos and all(t == 1 for t in degrees.slices)
