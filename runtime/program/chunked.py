"""The chunks of an interleaved pipeline in the programs of its ranks, and what they do again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from pcg.errors import InputError
from pcg.placement.recomputation import RecomputedSteps, recomputed_steps
from pcg.placement.saved import saved_tensors
from pcg.placement.schedule import Reshard, Schedule
from pcg.plan.chunks import Chunks, ChunksError, chunks_of
from pcg.plan.plan import Plan
from runtime.program.communication import pattern
from runtime.program.program import Instruction, Load
from runtime.program.slices import regular_transfer


def plan_chunks(plan: Plan, schedule: Schedule, where: str) -> Chunks | None:
    """The chunks of a plan's schedule; None where each stage has one. Raises InputError where its
    steps belong to none."""
    given = plan.pipeline
    if given is None or given.interleave == 1:
        return None
    size = plan.machine.devices // given.stages
    try:
        return chunks_of(schedule, given.stages, size, given.interleave)
    except ChunksError as error:
        raise InputError(where, str(error)) from error


def plan_again(plan: Plan, schedule: Schedule, where: str) -> RecomputedSteps:
    """What is done again of a plan's schedule. Raises InputError as ``plan_chunks``."""
    pipeline, chunks = plan.pipeline, plan_chunks(plan, schedule, where)
    stage = None if pipeline is None else plan.machine.devices // pipeline.stages
    numbers = {} if chunks is None else chunks.numbers
    return recomputed_steps(saved_tensors(schedule), plan.recompute, stage, numbers)


def chunk_ends(
    chunks: Chunks | None,
    interleave: int,
    stage: int,
    steps: Mapping[int, int],
    instructions: Iterable[Instruction],
) -> tuple[int, ...]:
    """Where the chunks of a stage end but the last, in what a rank of it does with a slice.
    ``steps``: the number of the step of the schedule at each position."""
    if chunks is None:
        return ()
    counts = [0] * interleave
    for instruction in instructions:
        # What is read of the data is there from the beginning.
        chunk = 0
        if not isinstance(instruction, Load):
            own = chunks.chunk(steps[instruction.position], stage)
            assert own is not None, "a slice is of a chunk wherever it lies"
            chunk = own
        counts[chunk] += 1
    return tuple(accumulate(counts[:-1]))


def ends_of(chunks: Chunks | None, places: Mapping[int, int]) -> Mapping[int, tuple[int, int]]:
    """The stages between which each step of slices goes, by its position. ``places``: the position
    of each step."""
    if chunks is None:
        return {}
    return {places[number]: chunks.stages_of(number) for number in chunks.steps}


def channels_of(chunks: Chunks | None, schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """The stages between which slices pass by messages, in order."""
    if chunks is None:
        return ()
    channels: set[tuple[int, int]] = set()
    for number in chunks.steps:
        step = schedule.steps[number]
        stages = chunks.stages_of(number)
        if not isinstance(step, Reshard) or (chunks.size == 1 and len(set(stages)) == 1):
            continue
        regular = regular_transfer(step)
        if regular is None or pattern(regular) is None:
            channels.add(stages)
    return tuple(sorted(channels))
