"""Where in a schedule the statistics of what batch norms of the model norm can be taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pcg.ops.norms import batch_norm
from pcg.plan import Plan
from pcg.schedule import Compute, Schedule, Slot
from pcg.statistics import named_values
from pcg.task import Task
from runtime.moves import region_of
from runtime.norms import NORM, STATISTICS
from runtime.program import Instruction, Piece, Run, Running
from runtime.slices import ends


@dataclass(frozen=True)
class Watch:
    """A tensor of which statistics are taken, where it lies in step ``number`` of the schedule.
    ``is_normed``: whether the step is a batch norm of it, and not the one that makes it."""

    slot: Slot
    number: int
    is_normed: bool

    def piece(self, rank: int, name: str) -> Piece | None:
        """The part of a rank: each block counts where it is held first."""
        held = self.slot.layout.by_device.get(rank)
        if held is None or self.slot.layout.holders[held][0] != rank:
            return None
        (first, last), channels, *others = region_of(self.slot.layout, rank)
        count = last - first
        for start, stop in others:
            count *= stop - start
        return Piece((f"{name}.mean", f"{name}.variance"), channels, count)

    def added(self, lowered: Iterable[Instruction], rank: int, name: str) -> Iterator[Instruction]:
        """What a rank does in the step, and the statistics of its part. ``name``: of the slot."""
        piece = self.piece(rank, name)
        if piece is None:
            yield from lowered
            return
        for instruction in lowered:
            if self.is_normed and isinstance(instruction, Run):
                results = (*instruction.results, *piece.registers)
                call = NORM(**instruction.call.values)
                yield replace(instruction, call=call, results=results)
            else:
                yield instruction
        if not self.is_normed:
            starts = (tuple(start for start, _ in region_of(self.slot.layout, rank)),)
            task = Task({}, {}, {})
            call = STATISTICS()
            yield Run(call, task, starts, (name,), piece.registers, position=self.number)


def watches(plan: Plan, schedule: Schedule) -> Mapping[str, Watch]:
    """By what is normed in the model. Of a pipeline there are none."""
    if not plan.statistics or plan.pipeline is not None:
        return {}
    values = named_values(plan.graph)
    normed: dict[object, Watch] = {}
    made: dict[object, Watch] = {}
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Compute) and step.node.operator_call.operator == batch_norm:
            slot = step.operands[0]
            normed.setdefault(slot.value, Watch(slot, number, is_normed=True))
        for slot in ends(step)[1]:
            if _is_plain(slot):
                made.setdefault(slot.value, Watch(slot, number, is_normed=False))
    found: dict[str, Watch] = {}
    for record in plan.statistics:
        value = None if record.at is None else values[record.at]
        if (watch := normed.get(value) or made.get(value)) is not None:
            found[record.value] = watch
    return found


def running(
    plan: Plan, found: Mapping[str, Watch], rank: int, names: Mapping[Slot, str]
) -> Iterator[Running]:
    """What a rank knows of each of the module's running statistics."""
    values = named_values(plan.model) if plan.statistics else {}
    for record in plan.statistics:
        watch = found.get(record.value)
        piece = None if watch is None else watch.piece(rank, names[watch.slot])
        yield Running(record, values[record.value].type.shape, watch is not None, piece)


def _is_plain(slot: Slot) -> bool:
    """Whether the blocks of a slot are a tensor's, each element in one place of it."""
    degrees = slot.layout.type.degrees
    return degrees.partials == 1 and not degrees.halos and all(t == 1 for t in degrees.slices)
