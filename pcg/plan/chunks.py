"""Which chunk of its stage each step of an interleaved pipeline belongs to.

A plan says on which devices an operator runs, and so of which stage it is; of which chunk follows
from that. Chunk c of stage s is number ``c * stages + s`` in the order in which data flows, and an
operator belongs to the first chunk of its stage that does not come before what it reads. What is
sent to a stage is received by the first of its chunks that does not come before the sender. So each
number sends to itself or later ones, and no further than as many numbers as there are stages. What
joins slices belongs to the chunk that has them. Complexity: one pass over the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from pcg.placement.schedule import Reshard, Schedule, Slot


class Ends(NamedTuple):
    """The numbers of the chunks that take part in a step: the one that has what it reads, and the
    one that gets what it makes."""

    source: int
    target: int


class ChunksError(ValueError):
    """Steps that belong to no chunk; the message says which, and why."""


@dataclass(frozen=True)
class Chunks:
    """The chunks of a schedule on equal groups of devices. Steps and slots that are not sliced
    belong to none."""

    stages: int
    size: int
    """Devices of a stage."""
    steps: Mapping[int, Ends]
    """By the number of the step in the schedule."""
    slots: Mapping[Slot, int]
    """In the memory of which chunk a slice lies."""

    def chunk(self, step: int, stage: int) -> int | None:
        """In which of its chunks a stage takes part in a step, if it does and that is sliced."""
        ends = self.steps.get(step)
        if ends is None:
            return None
        # Where both ends are of one stage, they are one chunk.
        for number in ends:
            if number % self.stages == stage:
                return number // self.stages
        return None

    @property
    def numbers(self) -> Mapping[int, int]:
        """By step, the number of its chunk: of the one that has what it reads."""
        return {at: ends.source for at, ends in self.steps.items()}

    def with_moved(self, schedule: Schedule, moved: Iterable[int]) -> Chunks:
        """With steps that are not sliced and yet done for each slice: they belong to the first
        chunk that reads what they make."""
        steps = dict(self.steps)
        for at in sorted(moved, reverse=True):
            made = set(schedule.steps[at].results)
            readers = (n for n in steps if not made.isdisjoint(schedule.steps[n].operands))
            number = min(steps[reader].source for reader in readers)
            steps[at] = Ends(number, number)
        return replace(self, steps=steps)

    def stages_of(self, step: int) -> tuple[int, int]:
        """The stage that has what a step reads, and the one that gets what it makes."""
        source, target = self.steps[step]
        return source % self.stages, target % self.stages


def chunks_of(schedule: Schedule, stages: int, size: int, interleave: int) -> Chunks:
    """The chunks of all steps that work on slices. Raises ChunksError where one belongs to none of
    the ``interleave`` chunks of a stage, or to several stages."""
    steps: dict[int, Ends] = {}
    slots: dict[Slot, int] = {}

    def stage_of(slot: Slot) -> int:
        own = {device // size for device in slot.layout.devices}
        if len(own) > 1:
            raise ChunksError(f"{slot.value.node.name} lies on devices of several stages")
        return own.pop()

    def after(stage: int, least: int, slot: Slot) -> int:
        number = least + (stage - least) % stages
        if number >= stages * interleave:
            name, most = slot.value.node.name, f"expected {interleave} at most"
            raise ChunksError(f"{name} needs chunk {number // stages + 1} of its stage, {most}")
        return number

    for at, step in enumerate(schedule.steps):
        if not any(map(is_sliced, (*step.operands, *step.results))):
            continue
        first, *_ = step.results
        if isinstance(step, Reshard):
            source = slots.get(step.source, stage_of(step.source))
            joins = not is_sliced(first)
            target = source if joins else after(stage_of(first), source, step.source)
            steps[at] = Ends(source, target)
        else:
            least = max((slots.get(slot, 0) for slot in step.operands), default=0)
            steps[at] = Ends(*[after(stage_of(first), least, first)] * 2)
        slots.update(dict.fromkeys(step.results, steps[at].target))
    return Chunks(stages, size, steps, slots)


def is_sliced(slot: Slot) -> bool:
    """Whether a slot holds slices of the batch."""
    return prod(slot.layout.type.degrees.slices) > 1


def ordered(chunks: Chunks, numbers: Iterable[int]) -> list[int]:
    """Steps of the schedule in the order of their chunks, of those that have what they read. That
    is an order in which none comes before what it reads, as no chunk reads of later ones."""
    return sorted(numbers, key=lambda at: (chunks.steps[at].source, at))
