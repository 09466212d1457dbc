"""Orders of pipelines: every stage runs each pass once, none waits for ever, and memory is
bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pcg.plan.pipeline import PipelineFile, ScheduleKind, Turn, lag, turns, under_way

SMALL = [
    (stages, micro_batches, interleave)
    for stages in range(1, 7)
    for micro_batches in range(1, 20)
    for interleave in range(1, 5)
]


def orders(
    stages: int, micro_batches: int, interleave: int, kind: ScheduleKind = "1f1b"
) -> list[list[Turn]]:
    return [list(turns(s, stages, micro_batches, interleave, kind)) for s in range(stages)]


def ends(every: Sequence[Sequence[Turn]]) -> Mapping[tuple[str, int, int], int]:
    """The end of each pass, if each takes 1: by kind, number of the chunk, and micro-batch. Passes
    that wait for ever are left out."""
    stages, chunks = len(every), len(every) * (1 + max(t.chunk for own in every for t in own))
    done: dict[tuple[str, int, int], int] = {}
    before = {"forward": -1, "backward": 1, "weights": chunks}
    at, clocks, moved = [0] * stages, [0] * stages, True
    while moved:
        moved = False
        for stage, own in enumerate(every):
            while at[stage] < len(own):
                kind, batch, chunk = own[at[stage]]
                number = chunk * stages + stage
                source = kind, number + before[kind], batch
                if 0 <= source[1] < chunks and source not in done:
                    break
                clocks[stage] = max(clocks[stage], done.get(source, 0)) + 1
                done[kind, number, batch] = clocks[stage]
                at[stage] += 1
                moved = True
    return done


def test_no_stage_waits_for_ever():
    """All small pipelines, also if stages do not divide the micro-batches."""
    for stages, micro_batches, interleave in SMALL:
        every = orders(stages, micro_batches, interleave)
        assert len(ends(every)) == 2 * stages * interleave * micro_batches


def test_each_stage_takes_every_micro_batch_forward_and_back_through_each_chunk_in_order():
    for stages, micro_batches, interleave in SMALL:
        whole = [
            Turn(kind, batch, chunk)
            for kind in ("forward", "backward")
            for batch in range(micro_batches)
            for chunk in range(interleave)
        ]
        for stage, own in enumerate(orders(stages, micro_batches, interleave)):
            assert sorted(own) == sorted(whole)
            held, most = set[tuple[int, int]](), 0
            for kind, batch, chunk in own:
                if kind == "forward":
                    assert not chunk or (batch, chunk - 1) in held
                    held.add((batch, chunk))
                    most = max(most, len(held))
                else:
                    assert (batch, chunk + 1) not in held
                    held.remove((batch, chunk))
            assert most == under_way(stage, stages, micro_batches, interleave)
            for chunk in range(interleave):
                for kind in ("forward", "backward"):
                    passed = [t.batch for t in own if t.chunk == chunk and t.kind == kind]
                    assert passed == sorted(passed)


def test_micro_batches_are_back_everywhere_before_a_later_one_begins():
    """So messages of slices that long ago have been received."""
    for stages, micro_batches, interleave in SMALL:
        back, lagging = set[int](), lag(stages, interleave)
        # A micro-batch that is back at the first chunk of the first stage is back everywhere.
        for kind, batch, chunk in orders(stages, micro_batches, interleave)[0]:
            if kind == "backward" and not chunk:
                back.add(batch)
            elif kind == "forward" and not chunk:
                assert back >= set(range(batch - lagging + 1))


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("interleave", [1, 2, 3, 4])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_devices_wait_less_with_more_chunks(stages, interleave, rounds):
    """The wait is (stages - 1) / (interleave * micro_batches) of the working time (Narayanan et
    al., section 2.2), for forward and backward passes of equal length."""
    micro_batches = rounds * stages
    last = max(ends(orders(stages, micro_batches, interleave)).values())
    working = 2 * interleave * micro_batches
    bubble = (stages - 1) / (interleave * micro_batches)
    assert last == working + round(bubble * working)


ZERO_BUBBLE = [(p, m) for p in range(1, 9) for m in range(1, 20)]


def test_forward_and_backward_zb_h1_is_1f1b_and_no_stage_waits_for_ever():
    for stages, micro_batches in ZERO_BUBBLE:
        every = orders(stages, micro_batches, 1, "zb-h1")
        plain = [[t for t in own if t.kind != "weights"] for own in every]
        assert plain == orders(stages, micro_batches, 1)
        assert len(ends(every)) == 3 * stages * micro_batches


def test_weights_of_zb_h1_come_in_order_after_the_backward_pass_and_as_late_as_memory_allows():
    """No stage holds more micro-batches than the first one by 1F1B. All stages hold equally
    many."""
    for stages, micro_batches in ZERO_BUBBLE:
        first = under_way(0, stages, micro_batches)
        for own in orders(stages, micro_batches, 1, "zb-h1"):
            weights = [t.batch for t in own if t.kind == "weights"]
            assert weights == list(range(micro_batches))
            held, back, most = 0, set[int](), 0
            for kind, batch, _ in own:
                held += (kind == "forward") - (kind == "weights")
                most = max(most, held)
                assert kind != "weights" or batch in back
                back |= {batch} if kind == "backward" else set()
            assert most == first


def test_devices_wait_by_zb_h1_for_a_third_as_long_as_by_1f1b():
    """Qi et al., table 2, if all passes take 1: (p - 1) (F + B - W) instead of (p - 1) (F + B +
    W)."""
    for stages, micro_batches in ZERO_BUBBLE:
        if micro_batches >= stages:
            last = max(ends(orders(stages, micro_batches, 1, "zb-h1")).values())
            assert last == 3 * micro_batches + (stages - 1)


def test_interleave_of_one_chunk_is_not_written():
    fields = {"stages": 2, "micro_batches": 4, "schedule": "1f1b"}
    assert PipelineFile.model_validate(fields).model_dump() == fields
    interleaved = PipelineFile.model_validate({**fields, "interleave": 3})
    assert interleaved.model_dump() == {**fields, "interleave": 3}
    assert PipelineFile.model_validate(interleaved.model_dump()) == interleaved
