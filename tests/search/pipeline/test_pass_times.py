"""The times of passes: as priced, one pass at a time, each micro-batch from stage to stage."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans.stage_seconds import chunks, stages, stages_with_weights

from pcg.plan.pipeline import Turn, turns
from search.pipeline.clock import StageSeconds, step_seconds
from search.pipeline.pass_times import Pass, passes

kinds = st.sampled_from(["1f1b", "2bw"])
SLACK = 1e-9
WAYS = ("forward", "backward")
flushed = st.one_of(
    chunks.map(lambda own: (*own, "1f1b")), stages_with_weights.map(lambda own: (own, 1, "zb-h1"))
)
"""Chunks, the number of chunks of each stage, and their order."""


def by_batch(timetable: list[Pass], kind: str, stage: int) -> list[Pass]:
    own = [one for one in timetable if (one.kind, one.stage) == (kind, stage)]
    return sorted(own, key=lambda one: one.batch)


@given(flushed, st.integers(1, 6))
def test_a_flushed_step_ends_when_it_is_priced_to(given_chunks, micro_batches):
    own, interleave, kind = given_chunks
    timetable = list(passes(own, micro_batches, kind, interleave))
    assert min(one.start for one in timetable) == pytest.approx(0.0, abs=SLACK)
    step = step_seconds(own, micro_batches, kind, interleave)
    assert max(one.end for one in timetable) == pytest.approx(step)


@given(flushed, st.integers(1, 6))
def test_a_flushed_step_is_in_its_order(given_chunks, micro_batches):
    """Each stage runs one pass at a time, and each chunk waits for the one before."""
    own, interleave, kind = given_chunks
    timetable = list(passes(own, micro_batches, kind, interleave))
    count = len(own) // interleave
    every = {
        (one.stage, Turn(one.kind, one.batch, one.chunk)): one
        for one in timetable
        if one.kind in (*WAYS, "weights")
    }
    for stage in range(count):
        order = [every[stage, t] for t in turns(stage, count, micro_batches, interleave, kind)]
        (before,), (after,) = (by_batch(timetable, kind, stage) for kind in ("before", "after"))
        for one, then in pairwise([before, *order, after]):
            assert one.end <= then.start + SLACK
    for (stage, turn), one in every.items():
        number = turn.chunk * count + stage + (-1 if turn.is_forward else 1)
        if turn.kind == "weights":
            number = -1
            assert every[stage, turn._replace(kind="backward")].end <= one.start + SLACK
        if 0 <= number < len(own):
            sent = every[number % count, turn._replace(chunk=number // count)]
            assert sent.end <= one.start + SLACK


@given(stages, st.integers(1, 6), kinds)
def test_micro_batches_go_through_the_stages_and_back(own, micro_batches, kind):
    timetable = list(passes(own, micro_batches, kind))
    last = len(own) - 1
    for stage in range(len(own)):
        forward, backward = (by_batch(timetable, way, stage) for way in WAYS)
        assert [one.batch for one in forward] == list(range(micro_batches))
        for there, back in zip(forward, backward, strict=True):
            assert there.end <= back.start + SLACK
        for way, source in ((forward, stage - 1), (backward, stage + 1)):
            if 0 <= source <= last:
                before = by_batch(timetable, way[0].kind, source)
                for one, sent in zip(way, before, strict=True):
                    assert sent.end <= one.start + SLACK


@given(stages, st.integers(1, 6))
def test_steps_without_a_flush_follow_each_other_in_their_time(own, micro_batches):
    """A step goes through the stages in more than its own time. If such steps begin one after the
    other, no stage runs two passes at once."""
    timetable = list(passes(own, micro_batches, "2bw"))
    period = step_seconds(own, micro_batches, "2bw")
    slack = SLACK * max(period, 1.0)
    for stage in range(len(own)):
        placed = sorted(
            (one.start % period, one.seconds)
            for one in timetable
            if one.stage == stage and one.seconds > slack
        )
        for (start, length), (then, _) in pairwise(placed):
            assert start + length <= then + slack
        if placed:
            (first, _), (start, length) = placed[0], placed[-1]
            assert start + length <= first + period + slack


@pytest.mark.parametrize(("count", "micro_batches"), [(1, 4), (4, 4), (4, 16), (16, 64)])
def test_even_stages_keep_as_many_under_way_as_in_1f1b(count, micro_batches):
    """Without a flush nobody ever waits: the last stage sends each micro-batch back at once."""
    even = [StageSeconds(1.0, 2.0, 0.0, 1.5)] * count
    timetable = list(passes(even, micro_batches, "2bw"))
    for stage in range(count):
        forward, backward = (by_batch(timetable, way, stage) for way in WAYS)
        assert backward[0].start - forward[0].end < 3.0 * (count - stage) + 1.5


def test_uneven_stages_keep_more_under_way_than_make_the_slowest_wait():
    """The second stage pauses for the time that two micro-batches take on the first."""
    uneven = [StageSeconds(1.0, 1.0, 0.0, 0.0), StageSeconds(0.25, 0.25, 0.0, 6.0)]
    timetable = list(passes(uneven, 4, "2bw"))
    assert step_seconds(uneven, 4, "2bw") == 8.0
    under_way = [
        sum(
            there.start + 8.0 * step < one.end <= back.end + 8.0 * step
            for there, back in zip(*(by_batch(timetable, way, 0) for way in WAYS), strict=True)
            for step in range(-3, 4)
        )
        for one in by_batch(timetable, "forward", 0)
    ]
    assert max(under_way) > 2
