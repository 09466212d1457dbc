"""The chunks of an interleaved pipeline in the programs of its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from pcg.errors import InputError
from pcg.placement.schedule import Schedule
from pcg.plan.chunks import Chunks, ChunksError, chunks_of
from pcg.plan.plan import Plan
from runtime.program.program import Instruction, Load


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


def chunk_ends(
    chunks: Chunks,
    interleave: int,
    stage: int,
    steps: Mapping[int, int],
    instructions: Iterable[Instruction],
) -> tuple[int, ...]:
    """Where the chunks of a stage end but the last, in what a rank of it does with a slice.
    ``steps``: the number of the step of the schedule at each position."""
    counts = [0] * interleave
    for instruction in instructions:
        # What is read of the data is there from the beginning.
        chunk = 0
        if not isinstance(instruction, Load):
            found = chunks.chunk(steps[instruction.position], stage)
            assert found is not None, "a slice is of a chunk wherever it lies"
            chunk = found
        counts[chunk] += 1
    return tuple(accumulate(counts[:-1]))


def around(chunks: Chunks | None, places: Mapping[int, int]) -> frozenset[int]:
    """The positions of the steps that go to the next chunk of a stage that is no later one.
    ``places``: the position of each step."""
    if chunks is None:
        return frozenset()
    return frozenset(places[number] for number in chunks.steps if chunks.goes_around(number))
