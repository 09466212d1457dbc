"""Numbers of rows are those of a dictionary of rows, however their hashes collide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.map.choose import key_numbers
from search.map.choose.key_numbers import KeyNumbers

ROW = st.tuples(
    st.integers(0, 4), st.integers(0, 1023), st.sampled_from((0.0, 0.5, 0.125)), st.just(2.0)
)


@given(st.lists(st.lists(ROW, min_size=1, max_size=200), min_size=1, max_size=4))
@pytest.mark.parametrize("bits", [1, 4, 18])
def test_numbers_are_those_of_a_dictionary(bits: int, parts: list[list[tuple[float, ...]]]):
    expected: dict[tuple[float, ...], int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_numbers, "SLOT_BITS", bits)
        known = KeyNumbers()
        for rows in parts:
            columns = tuple(np.array(column) for column in zip(*rows, strict=True))
            numbers = known.numbers(columns, lambda row: expected.setdefault(row, len(expected)))
            assert numbers.tolist() == [expected[row] for row in rows]
