"""The chunks of an interleaved pipeline, and the recomputation of a plan, for lowering."""

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
    """The chunks of a plan's schedule. None if each stage has a single chunk.

    Raises InputError if the steps of the schedule cannot be divided into chunks.
    """
    pipeline = plan.pipeline
    if pipeline is None or pipeline.interleave == 1:
        return None
    size = plan.machine.devices // pipeline.stages
    try:
        return chunks_of(schedule, pipeline.stages, size, pipeline.interleave)
    except ChunksError as error:
        raise InputError(where, str(error)) from error


def plan_again(plan: Plan, schedule: Schedule, where: str) -> RecomputedSteps:
    """The steps of a plan's schedule that the backward pass repeats. Raises InputError as
    ``plan_chunks`` does."""
    pipeline, chunks = plan.pipeline, plan_chunks(plan, schedule, where)
    stage_size = None if pipeline is None else plan.machine.devices // pipeline.stages
    numbers = {} if chunks is None else chunks.numbers
    return recomputed_steps(saved_tensors(schedule), plan.recompute, stage_size, numbers)


def chunk_ends(
    chunks: Chunks | None,
    interleave: int,
    stage: int,
    steps: Mapping[int, int],
    instructions: Iterable[Instruction],
) -> tuple[int, ...]:
    """The index at which each chunk of a stage ends, except the last, in a rank's instructions for
    a slice. ``steps``: the number of the schedule's step at each position."""
    if chunks is None:
        return ()
    counts = [0] * interleave
    for instruction in instructions:
        # Loads of data come before the first chunk.
        index = 0
        if not isinstance(instruction, Load):
            chunk = chunks.chunk(steps[instruction.position], stage)
            assert chunk is not None, "each step of a slice belongs to a chunk"
            index = chunk
        counts[index] += 1
    return tuple(accumulate(counts[:-1]))


def ends_of(chunks: Chunks | None, places: Mapping[int, int]) -> Mapping[int, tuple[int, int]]:
    """For each step of slices, by position: the stage of its source and the stage of its target.
    ``places``: the position of each step."""
    if chunks is None:
        return {}
    return {places[number]: chunks.stages_of(number) for number in chunks.steps}


def channels_of(chunks: Chunks | None, schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """The pairs of stages (source, target) between which slices pass by messages, sorted."""
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
