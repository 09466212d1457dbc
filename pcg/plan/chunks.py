"""The chunk of its stage to which each step of an interleaved pipeline belongs.

A plan gives the devices of an operator, and so its stage. The chunk follows from the stages. Chunk
c of stage s has the number ``c * stages + s``, in the order of data flow. An operator belongs to
the first chunk of its stage whose number is not less than those of its operands. A tensor that is
sent to a stage is received by the first of its chunks that is not before the sender. So each chunk
sends to itself or later ones, at most as many numbers ahead as there are stages. A step that joins
slices belongs to the chunk that has them. Complexity: one pass over the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from pcg.placement.schedule import Reshard, Schedule, Slot


class Ends(NamedTuple):
    """The numbers of the chunks that take part in a step: the one that has its operands, and the
    one that gets its results."""

    source: int
    target: int


class ChunksError(ValueError):
    """Steps that belong to no chunk. The message names one, with the reason."""


@dataclass(frozen=True)
class Chunks:
    """The chunks of a schedule on equal groups of devices. Steps and slots without slices belong to
    none."""

    stages: int
    size: int
    """The number of devices of a stage."""
    steps: Mapping[int, Ends]
    """By the number of a step in the schedule."""
    slots: Mapping[Slot, int]
    """The chunk in whose memory a slice lies."""

    def chunk(self, step: int, stage: int) -> int | None:
        """Return the chunk, counted within the stage, in which a stage takes part in a step.

        None if it takes no part, or if the step has no slices.
        """
        ends = self.steps.get(step)
        if ends is None:
            return None
        # If both ends belong to the stage, they are the same chunk.
        for number in ends:
            if number % self.stages == stage:
                return number // self.stages
        return None

    @property
    def numbers(self) -> Mapping[int, int]:
        """By step, the number of the chunk that has its operands."""
        return {step: ends.source for step, ends in self.steps.items()}

    def with_moved(self, schedule: Schedule, moved: Iterable[int]) -> Chunks:
        """Return the chunks with steps that have no slices, but are done for each slice. They
        belong to the first chunk that reads their results."""
        steps = dict(self.steps)
        for step in sorted(moved, reverse=True):
            results = set(schedule.steps[step].results)
            readers = (n for n in steps if not results.isdisjoint(schedule.steps[n].operands))
            number = min(steps[reader].source for reader in readers)
            steps[step] = Ends(number, number)
        return replace(self, steps=steps)

    def stages_of(self, step: int) -> tuple[int, int]:
        """Return the stage that has a step's operands, and the one that gets its results."""
        source, target = self.steps[step]
        return source % self.stages, target % self.stages


def chunks_of(schedule: Schedule, stages: int, size: int, interleave: int) -> Chunks:
    """Return the chunks of all steps that work on slices. Raises ChunksError if a step belongs to
    none of the ``interleave`` chunks of a stage, or to several stages."""
    steps: dict[int, Ends] = {}
    slots: dict[Slot, int] = {}

    def stage_of(slot: Slot) -> int:
        stage, *others = slot.layout.groups(size)
        if others:
            raise ChunksError(f"{slot.value.node.name} lies on devices of several stages")
        return stage

    def after(stage: int, least: int, slot: Slot) -> int:
        number = least + (stage - least) % stages
        if number >= stages * interleave:
            name, most = slot.value.node.name, f"expected {interleave} at most"
            raise ChunksError(f"{name} needs chunk {number // stages + 1} of its stage, {most}")
        return number

    for step_number, step in enumerate(schedule.steps):
        if not any(map(is_sliced, (*step.operands, *step.results))):
            continue
        first, *_ = step.results
        if isinstance(step, Reshard):
            source = slots.get(step.source, stage_of(step.source))
            joins = not is_sliced(first)
            target = source if joins else after(stage_of(first), source, step.source)
            steps[step_number] = Ends(source, target)
        else:
            least = max((slots.get(slot, 0) for slot in step.operands), default=0)
            steps[step_number] = Ends(*[after(stage_of(first), least, first)] * 2)
        slots.update(dict.fromkeys(step.results, steps[step_number].target))
    return Chunks(stages, size, steps, slots)


def is_sliced(slot: Slot) -> bool:
    """Whether a slot holds slices of the batch."""
    return prod(slot.layout.type.degrees.slices) > 1


def ordered(chunks: Chunks, numbers: Iterable[int]) -> list[int]:
    """Return steps in the order of the chunks that have their operands. In this order no step comes
    before its operands, since no chunk reads from later ones."""
    return sorted(numbers, key=lambda step: (chunks.steps[step].source, step))
