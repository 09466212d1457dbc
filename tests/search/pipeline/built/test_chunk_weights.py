"""How much seconds of stages delay a step, against the turns of the step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcg.plan.pipeline import ScheduleKind
from search.pipeline.built.chunk_weights import LEAST, delays
from search.pipeline.clock import StageSeconds, step_seconds

SECONDS = st.floats(0.5, 2.0)
SCHEDULES: tuple[tuple[ScheduleKind, int], ...] = ("1f1b", 1), ("zb-h1", 1), ("1f1b", 2), ("2bw", 1)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[list[StageSeconds], int, ScheduleKind, int]:
    """Chunks, micro-batches, a schedule, and the number of chunks of each stage."""
    kind, interleave = draw(st.sampled_from(SCHEDULES))
    stages = draw(st.integers(1, 3))
    chunks = [
        StageSeconds(
            draw(SECONDS),
            draw(SECONDS),
            after=draw(SECONDS) if at < stages else 0.0,
            weights=draw(SECONDS) if kind == "zb-h1" else 0.0,
        )
        for at in range(stages * interleave)
    ]
    return chunks, stages * draw(st.integers(1, 3)), kind, interleave


@given(pipelines())
def test_a_step_is_the_weighted_sum_of_its_chunks(given_pipeline):
    """If all seconds grow in proportion, so does a step (Euler's theorem). It is the longest path
    of its turns, so it is convex: where several paths are longest, their weights differ."""
    chunks, micro_batches, kind, interleave = given_pipeline
    order = kind, interleave
    step = step_seconds(chunks, micro_batches, *order)
    more, less = (_weighted(chunks, micro_batches, order, by) for by in (1e-7, -1e-7))
    assert less * (1 - 1e-5) <= step <= more * (1 + 1e-5)


def _weighted(
    chunks: list[StageSeconds], micro_batches: int, order: tuple[ScheduleKind, int], by: float
) -> float:
    """The weighted sum of all work."""
    weights = delays(chunks, micro_batches, *order, by=by)
    work = [own.forward + own.backward + own.weights for own in chunks]
    each = sum(weight * own for weight, own in zip(weights.micro, work, strict=True))
    return each + sum(w * own.after for w, own in zip(weights.once, chunks, strict=True))


@given(pipelines(), st.floats(1e-3, 0.3), st.data())
def test_a_step_takes_longer_by_the_weight_of_a_chunk(given_pipeline, by, data):
    """The quotient of a difference is exact for this difference."""
    chunks, micro_batches, *order = given_pipeline
    step = step_seconds(chunks, micro_batches, *order)
    at = data.draw(st.integers(0, len(chunks) - 1))
    longer = [*chunks]
    longer[at] = replace(chunks[at], after=chunks[at].after + by * step)
    after = step_seconds(longer, micro_batches, *order)
    weights = delays(chunks, micro_batches, *order, by=by)
    assert after == pytest.approx(step + by * step * weights.once[at])
    assert all(-1e-9 <= own <= 1 + 1e-9 for own in weights.once)


def test_an_update_that_a_slower_stage_hides_has_a_small_weight():
    """The last stage has done its last backward pass long before the first one."""
    chunks = [StageSeconds(4.0, 8.0, after=1.0), StageSeconds(1.0, 2.0, after=1.0)]
    weights = delays(chunks, 4, "1f1b", 1, by=1e-3)
    assert weights.once == pytest.approx((1.0, 0.0))
    assert weights.micro == pytest.approx((4.0, 0.0))
    assert weights.raised(4).once == pytest.approx((1.0, LEAST))
    assert weights.raised(4).micro == pytest.approx((4.0, 4 * LEAST))
