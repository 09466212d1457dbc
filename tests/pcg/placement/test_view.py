"""Machine views: the device of each task."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcg.placement.view import MachineView

shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)


@given(shapes, st.integers(0, 7), st.data())
def test_packed_views_fill_consecutive_devices(
    shape: tuple[int, ...], start: int, data: st.DataObject
):
    order = data.draw(st.permutations(range(len(shape))))
    view = MachineView.packed(start, shape, tuple(order))
    assert sorted(view.devices) == list(range(start, start + prod(shape)))
    assert view.is_injective
    assert view.size == prod(shape)
    # Tasks sorted with the axes in the given order, slowest first, are the devices in order.
    tasks = sorted(view.tasks(), key=lambda task: [task[axis] for axis in order])
    assert [view.device(task) for task in tasks] == list(range(start, start + prod(shape)))


@given(shapes, st.data())
def test_injective_is_no_device_twice(shape: tuple[int, ...], data: st.DataObject):
    strides = tuple(data.draw(st.integers(0, 5)) for _ in shape)
    view = MachineView(0, shape, strides)
    devices = [sum(t * s for t, s in zip(task, strides, strict=True)) for task in view.tasks()]
    assert list(view.devices) == devices
    assert view.is_injective == (len(set(devices)) == len(devices))


def test_default_order_is_last_axis_fastest():
    assert MachineView.packed(3, (2, 3)) == MachineView(3, (2, 3), (3, 1))
    assert MachineView.packed(0, (2, 3), (1, 0)).devices == (0, 2, 4, 1, 3, 5)
    assert MachineView.packed(5, ()).devices == (5,)


@pytest.mark.parametrize(
    ("view", "text"),
    [(MachineView(1, (2, 3), (3, 1)), "1 + [2:3, 3:1]"), (MachineView(0, (), ()), "0 + []")],
)
def test_view_prints_as_its_text(view: MachineView, text: str):
    assert str(view) == text
