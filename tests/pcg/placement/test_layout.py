"""Tests of layouts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pcg.placement.layout import Layout, Piece
from pcg.types.tensor import Degrees, ParallelTensor

TENSOR = ParallelTensor((64,), Degrees((64,), (1,), 1, 1))


@given(st.lists(st.integers(0, 63), min_size=1, unique=True), st.integers(1, 70))
def test_groups_of_a_layout_hold_all_its_devices(devices: list[int], size: int):
    layout = Layout(TENSOR, tuple((d, Piece(0, (i,))) for i, d in enumerate(devices)))
    assert layout.groups(size) == {device // size for device in devices}
