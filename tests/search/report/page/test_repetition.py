"""Repeated blocks: each shown block stands for exactly the hidden ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from search.report.page.repetition import LEAST_SAVED, repetitions, shown_for

BLOCKS = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 6)), max_size=6
)


@given(BLOCKS)
def test_shown_block_equals_each_block_it_stands_for(blocks):
    keys = [key for block, times in blocks for key in block * times]
    shown = shown_for(keys)
    assert len(shown) == len(keys)
    for place, (first, times) in enumerate(shown):
        assert first <= place
        assert keys[first] == keys[place]
        assert shown[first] == (first, times)
        assert sum(other == first for other, _ in shown) == times


@given(BLOCKS)
def test_repetitions_do_not_overlap_and_repeat(blocks):
    keys = [key for block, times in blocks for key in block * times]
    end = 0
    for one in repetitions(keys):
        assert one.start >= end
        assert one.times >= 2
        assert one.saved >= LEAST_SAVED
        block = keys[one.start : one.start + one.length]
        assert keys[one.start : one.stop] == block * one.times
        end = one.stop
    assert end <= len(keys)


@given(st.integers(3, 9), st.integers(2, 30))
def test_layers_are_folded(length, layers):
    keys = ["first", *(list(range(length)) * layers), "last"]
    repeats = repetitions(keys)
    if length * (layers - 1) < LEAST_SAVED:
        assert not repeats
    else:
        assert [(one.start, one.length, one.times) for one in repeats] == [(1, length, layers)]
