"""The time of a step by 1F1B, interleaved or not, and by ZB-H1."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.stage_seconds import chunks, stages, stages_with_weights

from pcg.plan.pipeline import ScheduleKind, turns
from search.pipeline import clock
from search.pipeline.clock import WEIGHT_VERSIONS, StageSeconds, flush_ends, step_seconds

NONE = -1
COUNTS = [(1, 1), (1, 5), (2, 1), (2, 8), (4, 4), (4, 3), (4, 16), (16, 64), (7, 2)]


@pytest.mark.parametrize(("count", "micro_batches"), COUNTS)
def test_equal_stages_take_the_closed_form(count, micro_batches):
    """Without transfers: all micro-batches, and one for each stage before the last."""
    same = [StageSeconds(1.0, 2.0)] * count
    assert step_seconds(same, micro_batches) == pytest.approx((micro_batches + count - 1) * 3.0)
    assert step_seconds(same, micro_batches, "2bw") == pytest.approx(micro_batches * 3.0)


@pytest.mark.parametrize("interleave", [1, 2, 3])
@pytest.mark.parametrize(("count", "rounds"), [(2, 1), (2, 4), (4, 1), (4, 3), (8, 2)])
def test_interleaved_equal_stages_take_the_closed_form(count, rounds, interleave):
    """Devices wait for (p - 1) / (v m) of the time that they work (Narayanan et al., SC 2021)."""
    micro_batches = rounds * count
    same = [StageSeconds(1.0, 2.0)] * (count * interleave)
    working = 3.0 * interleave * micro_batches
    waiting = working * (count - 1) / (interleave * micro_batches)
    seconds = step_seconds(same, micro_batches, interleave=interleave)
    assert seconds == pytest.approx(working + waiting)


def longest_path(
    own: list[StageSeconds], micro_batches: int, interleave: int, schedule: ScheduleKind = "1f1b"
) -> float:
    """The time of a step as the longest path through all dependences."""
    graph: nx.DiGraph[object] = nx.DiGraph()
    last, count = len(own) - 1, len(own) // interleave

    def after(before: object, then: object, seconds: float) -> None:
        graph.add_edge(before, then, weight=seconds)

    for s in range(count):
        previous: object = ("before", s)
        after("start", previous, sum(chunk.before for chunk in own[s::count]))
        for kind, batch, chunk in turns(s, count, micro_batches, interleave, schedule):
            number = chunk * count + s
            this = (number, kind, batch)
            time = own[number].of(kind)
            after(previous, this, time)
            source = {"forward": number - 1, "backward": number + 1, "weights": NONE}[kind]
            if 0 <= source <= last:
                after((source, kind, batch), this, time)
            previous = this
        after(previous, "end", sum(chunk.after for chunk in own[s::count]))
    return nx.dag_longest_path_length(graph)


@settings(max_examples=40, deadline=None)
@given(chunks, st.integers(1, 6))
def test_a_step_takes_the_longest_chain_of_waiting(own, micro_batches):
    chunks_of_stages, interleave = own
    seconds = step_seconds(chunks_of_stages, micro_batches, interleave=interleave)
    assert seconds == pytest.approx(longest_path(chunks_of_stages, micro_batches, interleave))


@settings(max_examples=40, deadline=None)
@given(chunks, st.integers(10, 70))
def test_step_time_of_many_micro_batches_equals_that_of_all_turns(own, micro_batches):
    """Only some of the micro-batches are followed."""
    every, interleave = own
    count = len(every) // interleave
    ends = flush_ends(every, micro_batches, interleave)
    last = [ends[s] + sum(chunk.after for chunk in every[s::count]) for s in range(count)]
    seconds = step_seconds(every, micro_batches, interleave=interleave)
    assert seconds == pytest.approx(max(last), rel=1e-9)


def test_few_of_many_micro_batches_are_followed(monkeypatch):
    """One stage is slower than the others, which soon wait for it in each round."""
    followed: list[int] = []
    every = clock.turn_ends

    def counted(chunks, micro_batches, interleave, kind):
        followed.append(micro_batches)
        return every(chunks, micro_batches, interleave, kind)

    uneven = [StageSeconds(1.0 + (s % 8 == 3) / 4, 2.0) for s in range(16)]
    whole = max(flush_ends(uneven, 2048, 2))
    monkeypatch.setattr(clock, "turn_ends", counted)
    assert step_seconds(uneven, 2048, interleave=2) == pytest.approx(whole, rel=1e-9)
    assert max(followed) < 512


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.integers(0, 40), *[st.integers(0, 9)] * 3)
def test_equal_stages_wait_by_zb_h1_as_its_paper_says(count, more, shorter, forward, backward):
    """Qi et al., table 2: (p - 1) (F + B - W), if the pass for weights takes no longer than the
    others."""
    weights = float(min(shorter, forward, backward))
    same = [StageSeconds(forward, backward, weights=weights)] * count
    micro_batches = count + more
    working = micro_batches * (forward + backward + weights)
    waiting = (count - 1) * (forward + backward - weights)
    seconds = step_seconds(same, micro_batches, "zb-h1")
    assert seconds == pytest.approx(working + waiting)
    whole = [StageSeconds(forward, backward + weights)] * count
    assert step_seconds(whole, micro_batches) == pytest.approx(seconds + 2 * (count - 1) * weights)


@settings(max_examples=40, deadline=None)
@given(stages_with_weights, st.integers(1, 40))
def test_a_step_by_zb_h1_takes_the_longest_chain_of_waiting(own, micro_batches):
    """Also with many micro-batches, of which only some are followed."""
    seconds = step_seconds(own, micro_batches, "zb-h1")
    assert seconds == pytest.approx(longest_path(own, micro_batches, 1, "zb-h1"), rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(stages, st.integers(1, 6))
def test_no_flush_never_takes_longer(own, micro_batches):
    flushed = step_seconds(own, micro_batches)
    assert step_seconds(own, micro_batches, "2bw") <= flushed * (1 + 1e-12)
    assert max(flush_ends(own, micro_batches)) <= flushed * (1 + 1e-12)


def test_only_2bw_holds_two_versions():
    assert WEIGHT_VERSIONS == {"1f1b": 1, "2bw": 2, "zb-h1": 1}
