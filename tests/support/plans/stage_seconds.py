"""Random seconds of the stages of pipelines, and of their chunks."""

from __future__ import annotations

from hypothesis import strategies as st

from search.pipeline.clock import StageSeconds

seconds = st.floats(0.0, 4.0)
one_stage = st.builds(StageSeconds, seconds, seconds, seconds, seconds)
stages = st.lists(one_stage, min_size=1, max_size=5)
_with_weights = st.builds(StageSeconds, *[seconds] * 5)
stages_with_weights = st.lists(_with_weights, min_size=1, max_size=5)


@st.composite
def _chunks(draw: st.DrawFn) -> tuple[list[StageSeconds], int]:
    """Chunks of some stages, and the number of chunks of each."""
    interleave, count = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    size = interleave * count
    return draw(st.lists(one_stage, min_size=size, max_size=size)), interleave


chunks = _chunks()
