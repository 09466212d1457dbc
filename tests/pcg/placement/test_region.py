"""Regions agree with numpy's slices."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pcg.placement.region import (
    Region,
    as_slices,
    elements,
    extent,
    intersection,
    region_text,
    starts_of,
    whole_region,
    within,
)

SHAPE = (5, 4, 6)


@st.composite
def regions(draw: st.DrawFn) -> Region:
    return tuple(
        (start, draw(st.integers(start + 1, size)))
        for size in SHAPE
        for start in (draw(st.integers(0, size - 1)),)
    )


@given(regions(), regions())
def test_regions_agree_with_slices_of_arrays(a, b):
    array = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    cut = array[as_slices(a)]
    assert (cut.shape, cut.size) == (extent(a), elements(a))
    assert array[starts_of(a)] == cut.flat[0]
    assert (array[as_slices(whole_region(SHAPE))] == array).all()
    shared, both = np.intersect1d(cut, array[as_slices(b)]), intersection(a, b)
    if both is None:
        assert not len(shared)
    else:
        assert (array[as_slices(both)].ravel() == shared).all()
        assert (cut[as_slices(within(both, a))].ravel() == shared).all()


def test_a_number_is_one_region():
    assert whole_region(()) == ()
    assert elements(()) == 1
    assert intersection((), ()) == ()
    assert region_text(((0, 4), (8, 16))) == "[0:4, 8:16]"
