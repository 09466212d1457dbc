"""1F1B: what stages do in order, what that takes, and how much they hold meanwhile."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.pipeline.clock import (
    WEIGHT_VERSIONS,
    StageSeconds,
    flush_ends,
    in_flight,
    step_seconds,
    turns,
)

COUNTS = [(1, 1), (1, 5), (2, 1), (2, 8), (4, 4), (4, 3), (4, 16), (16, 64), (7, 2)]
seconds = st.floats(0.0, 4.0)
stages = st.lists(
    st.builds(StageSeconds, seconds, seconds, seconds, seconds), min_size=1, max_size=5
)


@pytest.mark.parametrize(("count", "micro_batches"), COUNTS)
def test_equal_stages_take_the_closed_form(count, micro_batches):
    """Without transfers: all micro-batches, and one for each stage before the last."""
    same = [StageSeconds(1.0, 2.0)] * count
    assert step_seconds(same, micro_batches) == pytest.approx((micro_batches + count - 1) * 3.0)
    assert step_seconds(same, micro_batches, "2bw") == pytest.approx(micro_batches * 3.0)


@pytest.mark.parametrize(("count", "micro_batches"), COUNTS)
def test_every_stage_sends_each_micro_batch_forward_and_then_back(count, micro_batches):
    for stage in range(count):
        order = list(turns(stage, count, micro_batches))
        assert sorted(order) == sorted(
            (forward, batch) for forward in (True, False) for batch in range(micro_batches)
        )
        held, most = set[int](), 0
        for forward, batch in order:
            if forward:
                held.add(batch)
            else:
                held.remove(batch)  # which it has sent forward before
            most = max(most, len(held))
        assert most == in_flight(stage, count, micro_batches)


def test_later_stages_hold_fewer_micro_batches():
    assert [in_flight(stage, 4, 8) for stage in range(4)] == [4, 3, 2, 1]
    assert [in_flight(stage, 4, 2) for stage in range(4)] == [2, 2, 2, 1]


def longest_path(own: list[StageSeconds], micro_batches: int) -> float:
    """The step as the longest path through all that has to wait for something."""
    graph: nx.DiGraph[object] = nx.DiGraph()
    last = len(own) - 1

    def after(before: object, then: object, seconds: float) -> None:
        graph.add_edge(before, then, weight=seconds)

    for s, stage in enumerate(own):
        previous: object = ("before", s)
        after("start", previous, stage.before)
        for forward, batch in turns(s, len(own), micro_batches):
            this = (s, forward, batch)
            time = stage.forward if forward else stage.backward
            after(previous, this, time)
            source = s - 1 if forward else s + 1
            if 0 <= source <= last:
                after((source, forward, batch), this, time)
            previous = this
        after(previous, "end", stage.after)
    return nx.dag_longest_path_length(graph)


@settings(max_examples=20, deadline=None)
@given(stages, st.integers(1, 6))
def test_a_step_takes_the_longest_chain_of_waiting(own, micro_batches):
    assert step_seconds(own, micro_batches) == pytest.approx(longest_path(own, micro_batches))


@settings(max_examples=20, deadline=None)
@given(stages, st.integers(1, 6))
def test_no_flush_never_takes_longer(own, micro_batches):
    flushed = step_seconds(own, micro_batches)
    assert step_seconds(own, micro_batches, "2bw") <= flushed * (1 + 1e-12)
    assert max(flush_ends(own, micro_batches)) <= flushed * (1 + 1e-12)


def test_only_2bw_holds_two_versions():
    assert WEIGHT_VERSIONS == {"1f1b": 1, "2bw": 2}
