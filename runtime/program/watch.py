"""Find the steps of a schedule that can compute the statistics of the model's batch norms."""

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
from runtime.program.running import NormStatistics, StatisticsPart

Lowered = Iterator[tuple[int, Instruction]]
"""The instructions of a step, as (rank, instruction). Those of a rank are in their order."""


@dataclass(frozen=True)
class WatchedTensor:
    """A tensor whose statistics step ``number`` of the schedule computes. ``is_normed``: whether
    this step is a batch norm of the tensor. If not, it is the step that produces the tensor.

    With samples in several ``groups``, the statistics are those of the first group. That is what
    DistributedDataParallel keeps: it sends the buffers of its first rank to all others.
    """

    slot: Slot
    number: int
    is_normed: bool
    groups: int = 1

    def piece(self, rank: int, name: str) -> StatisticsPart | None:
        """A rank's part of the statistics. Each block counts on its first holder only; None on all
        other ranks, and for a block without samples of the first group."""
        own_piece = self.slot.layout.by_device.get(rank)
        if own_piece is None or self.slot.layout.holders[own_piece][0] != rank:
            return None
        _, channels, *rest = self.slot.layout.regions[rank]
        count = self._rows(rank) * elements(tuple(rest))
        if count == 0:
            return None
        return StatisticsPart((f"{name}.mean", f"{name}.variance"), channels, count)

    def _rows(self, rank: int) -> int:
        """The number of the first group's samples in a rank's block. They come first in it."""
        (first, last), *_ = self.slot.layout.regions[rank]
        end = self.slot.layout.type.shape[0] // self.groups
        return max(0, min(last, end) - first)

    def added(self, lowered: Lowered, ranks: Sequence[int], name: str) -> Lowered:
        """The instructions of the step, with those that compute statistics added. ``name``: the
        register of the slot."""
        pieces = {rank: self.piece(rank, name) for rank in ranks}
        for rank, instruction in lowered:
            piece = pieces[rank]
            if piece is not None and self.is_normed and isinstance(instruction, Run):
                results = (*instruction.results, *piece.registers)
                norm = NORM if self.groups == 1 else GROUP_NORM
                call = norm(**instruction.call.values)
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
    """The watched tensors of a plan, by the name of the normalized value in the model. Empty for a
    pipeline."""
    if not plan.statistics or plan.pipeline is not None:
        return {}
    values, groups = named_values(plan.graph), plan.norm_groups
    norm = batch_norm if groups == 1 else ghost_batch_norm
    normed: dict[object, WatchedTensor] = {}
    produced: dict[object, WatchedTensor] = {}
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Compute) and _is_norm(step, norm, groups):
            slot = step.operands[0]
            normed.setdefault(
                slot.value, WatchedTensor(slot, number, is_normed=True, groups=groups)
            )
        for slot in step.results:
            if _is_plain(slot):
                produced.setdefault(
                    slot.value, WatchedTensor(slot, number, is_normed=False, groups=groups)
                )
    watched: dict[str, WatchedTensor] = {}
    for record in plan.statistics:
        value = None if record.at is None else values[record.at]
        if (watch := normed.get(value) or produced.get(value)) is not None:
            watched[record.value] = watch
    return watched


def running(
    plan: Plan, watched: Mapping[str, WatchedTensor], rank: int, names: Mapping[Slot, str]
) -> Iterator[NormStatistics]:
    """The running statistics of the module, each with a rank's part. ``names``: the register of
    each slot."""
    values = named_values(plan.model) if plan.statistics else {}
    for record in plan.statistics:
        watch = watched.get(record.value)
        piece = None if watch is None else watch.piece(rank, names[watch.slot])
        samples, *rest = values[record.value].type.shape
        shape = (samples // plan.norm_groups, *rest)
        yield NormStatistics(record, shape, watch is not None, piece)


def _is_norm(step: Compute, norm: Operator, groups: int) -> bool:
    """Whether a step is a batch norm in ``groups`` groups."""
    call = step.node.operator_call
    return call.operator == norm and call.values.get("groups", 1) == groups


def _is_plain(slot: Slot) -> bool:
    """Whether a slot has no partials, halos or slices, so that each element is in one block."""
    degrees = slot.layout.type.degrees
    return degrees.partials == 1 and not degrees.halos and all(t == 1 for t in degrees.slices)
