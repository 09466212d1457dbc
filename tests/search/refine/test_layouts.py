"""Numbers of layouts on any devices."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.cases import examples
from support.small.random_layouts import layout_at_random

from pcg.machine import load_machine
from pcg.placement.layout import Layout, moved_by
from search.cost.cost import Duration
from search.refine.layouts import NumberedLayouts
from search.refine.rows import DurationRows

MACHINE = load_machine("summit").with_devices(6)


@examples(60)
@given(st.randoms(use_true_random=False), st.lists(st.integers(-3, 20), min_size=1, max_size=6))
def test_equal_layouts_have_one_number(random, moves):
    """Whether a layout is numbered or moved first makes no difference."""
    layouts, numbers = NumberedLayouts(), dict[Layout, int]()
    for by in moves:
        layout = layout_at_random(MACHINE, random, 1, overlaps=True)
        other = moved_by(layout, by)
        if random.random() < 0.5:
            assert layouts.number[other] == layouts.moved[layouts.number[layout], by]
        else:
            assert layouts.moved[layouts.number[layout], by] == layouts.number[other]
        for own in (layout, other):
            assert numbers.setdefault(own, layouts.number[own]) == layouts.number[own]
    assert len(set(numbers.values())) == len(numbers) == len(layouts.places)
    for layout, number in numbers.items():
        assert layouts.layout[number] == layout
        shape, start = layouts.places[number]
        assert start == layout.devices[0]
        assert layouts.shapes[shape].devices[0] == 0


@examples(60)
@given(st.integers(1, 130), st.integers(0, 200), st.randoms(use_true_random=False))
def test_a_moved_duration_is_one_on_other_devices(devices, by, random):
    rows = DurationRows(devices + 200)
    groups = np.array(random.sample(range(devices), devices)).reshape(-1, 1)
    given_one = Duration(groups, np.array([random.random() for _ in range(devices)]))
    for duration in (given_one, Duration(groups.reshape(1, -1), given_one.seconds[:1])):
        moved = rows.moved[rows.row[duration], by]
        made, table = rows.duration[moved], rows.table()
        np.testing.assert_array_equal(made.groups, duration.groups + by)
        np.testing.assert_array_equal(made.seconds, duration.seconds)
        expected = DurationRows(devices + 200)
        other = expected.row[Duration(duration.groups + by, duration.seconds)]
        assert table.shortest[moved] == duration.shortest
        np.testing.assert_array_equal(table.busy[moved], expected.table().busy[other])
        first, second = table.rows[moved, 0], expected.table().rows[other, 0]
        for own in range(len(duration.groups)):
            np.testing.assert_array_equal(
                table.busy_groups[first + own], expected.table().busy_groups[second + own]
            )
