"""Orders of pipelines: every stage does all once, none waits for ever, and memory is bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pcg.plan.pipeline import PipelineFile, Turn, lag, turns, under_way

SMALL = [
    (stages, micro_batches, interleave)
    for stages in range(1, 7)
    for micro_batches in range(1, 20)
    for interleave in range(1, 5)
]


def orders(stages: int, micro_batches: int, interleave: int) -> list[list[Turn]]:
    return [list(turns(s, stages, micro_batches, interleave)) for s in range(stages)]


def ends(every: Sequence[Sequence[Turn]]) -> Mapping[tuple[bool, int, int], int]:
    """When each pass is done, where each takes 1: by direction, number of the chunk, micro-batch.
    What waits for ever is not there."""
    stages, chunks = len(every), len(every) * (1 + max(t.chunk for own in every for t in own))
    done: dict[tuple[bool, int, int], int] = {}
    at, clocks, moved = [0] * stages, [0] * stages, True
    while moved:
        moved = False
        for stage, own in enumerate(every):
            while at[stage] < len(own):
                is_forward, batch, chunk = own[at[stage]]
                number = chunk * stages + stage
                source = is_forward, number + (-1 if is_forward else 1), batch
                if 0 <= source[1] < chunks and source not in done:
                    break
                clocks[stage] = max(clocks[stage], done.get(source, 0)) + 1
                done[is_forward, number, batch] = clocks[stage]
                at[stage] += 1
                moved = True
    return done


def test_no_stage_waits_for_ever():
    """For all small pipelines, also where stages do not divide the micro-batches."""
    for stages, micro_batches, interleave in SMALL:
        every = orders(stages, micro_batches, interleave)
        assert len(ends(every)) == 2 * stages * interleave * micro_batches


def test_each_stage_takes_every_micro_batch_forward_and_back_through_each_chunk_in_order():
    for stages, micro_batches, interleave in SMALL:
        whole = [
            Turn(forward, batch, chunk)
            for forward in (True, False)
            for batch in range(micro_batches)
            for chunk in range(interleave)
        ]
        for stage, own in enumerate(orders(stages, micro_batches, interleave)):
            assert sorted(own) == sorted(whole)
            held, most = set[tuple[int, int]](), 0
            for forward, batch, chunk in own:
                if forward:
                    assert not chunk or (batch, chunk - 1) in held
                    held.add((batch, chunk))
                    most = max(most, len(held))
                else:
                    assert (batch, chunk + 1) not in held
                    held.remove((batch, chunk))
            assert most == under_way(stage, stages, micro_batches, interleave)
            for chunk in range(interleave):
                for forward in (True, False):
                    passed = [t.batch for t in own if t.chunk == chunk and t.is_forward == forward]
                    assert passed == sorted(passed)


def test_micro_batches_are_back_everywhere_before_a_later_one_begins():
    """So that messages of slices so long ago have been received."""
    for stages, micro_batches, interleave in SMALL:
        back, lagging = set[int](), lag(stages, interleave)
        # Who is back at the first chunk of the first stage is back everywhere.
        for forward, batch, chunk in orders(stages, micro_batches, interleave)[0]:
            if not forward and not chunk:
                back.add(batch)
            elif forward and not chunk:
                assert back >= set(range(batch - lagging + 1))


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("interleave", [1, 2, 3, 4])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_devices_wait_for_less_the_more_chunks_there_are(stages, interleave, rounds):
    """(stages - 1) / (interleave * micro_batches) of the time that they work (Narayanan et al.,
    section 2.2), in passes that take as long either way."""
    micro_batches = rounds * stages
    last = max(ends(orders(stages, micro_batches, interleave)).values())
    working = 2 * interleave * micro_batches
    bubble = (stages - 1) / (interleave * micro_batches)
    assert last == working + round(bubble * working)


def test_one_chunk_is_not_written():
    fields = {"stages": 2, "micro_batches": 4, "schedule": "1f1b"}
    assert PipelineFile.model_validate(fields).model_dump() == fields
    interleaved = PipelineFile.model_validate({**fields, "interleave": 3})
    assert interleaved.model_dump() == {**fields, "interleave": 3}
    assert PipelineFile.model_validate(interleaved.model_dump()) == interleaved
