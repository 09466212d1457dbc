"""Random masks: independent of the cut, with independent elements, and with the right share of
ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs.strategies import drawn_region

from pcg.graph.graph import drawn_mask as mask_value
from runtime.inputs import masks
from runtime.inputs.masks import drawn_mask
from runtime.inputs.seeded import input_batch, mask_key, random_words

KEY = torch.tensor(12345)


def mask_leaf(shape, share=0.5, name="a"):
    return mask_value(name, shape, share).node.leaf


def whole(leaf, key=KEY):
    return drawn_mask(leaf, (0,) * leaf.rank, leaf.shape, key)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_piece_equals_that_part_of_the_whole_mask(given):
    shape, region = drawn_region(given)
    leaf = mask_leaf(shape, given.draw(st.floats(0.01, 0.99), label="share"))
    starts, extent = (tuple(s for s, _ in region), tuple(e - s for s, e in region))
    piece = drawn_mask(leaf, starts, extent, KEY)
    assert torch.equal(piece, whole(leaf)[tuple(slice(s, e) for s, e in region)])
    key = torch.tensor(mask_key(leaf, 3, 5))
    assert torch.equal(input_batch(leaf, 3, 5, region) != 0, drawn_mask(leaf, starts, extent, key))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 64))
def test_chunks_do_not_show(rows, columns, chunk):
    leaf = mask_leaf((rows, columns))
    at_once = whole(leaf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(masks.CHUNK, "cpu", chunk)
        assert torch.equal(whole(leaf), at_once)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(1, 5), st.integers(1, 9))
def test_mask_is_drawn_from_the_halves_of_splitmix64_words(key, rows, columns):
    """SplitMix64, in torch's signed integers as in numpy's unsigned ones: each word's lower half
    for one element, and its upper half for the next in the row."""
    words = random_words(key, np.arange(rows * -(-columns // 2), dtype=np.uint64))
    halves = words.view(np.int32).reshape(rows, -1)[:, :columns]
    drawn = whole(mask_leaf((rows, columns), 0.3), torch.tensor(masks.signed(key)))
    assert np.array_equal(drawn.numpy(), halves < round(0.3 * 2**32) - 2**31)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0 - 2.0**-40])
def test_elements_are_independent_and_so_many_are_ones(share):
    drawn = whole(mask_leaf((500, 801), share)).double()
    spread = (share * (1.0 - share)) ** 0.5
    assert drawn.mean().item() == pytest.approx(share, abs=5 * spread / drawn.numel() ** 0.5)
    if share > 0.99:
        return
    central = (drawn - drawn.mean()) / spread
    limit = 5 / drawn.numel() ** 0.5
    for other in (central.roll(1, 0), central.roll(1, 1), central.roll(2, 1), central.flip(0)):
        assert abs((central * other).mean().item()) < limit


def test_names_seeds_and_steps_make_a_difference():
    leaf, other = mask_leaf((64,)), mask_leaf((64,), name="b")
    seen = [input_batch(leaf, 0, 0), input_batch(leaf, 0, 1), input_batch(leaf, 1, 0)]
    seen.append(input_batch(other, 0, 0))
    assert len({tuple(values.tolist()) for values in seen}) == len(seen)


def test_no_place_is_too_far():
    """A mask may have more elements than 32 bits count."""
    leaf = mask_leaf((1 << 20, 1 << 14))
    far = [drawn_mask(leaf, (row, 0), (1, 64), KEY) for row in ((1 << 20) - 1, 0, 1 << 18)]
    assert len({tuple(values.view(-1).tolist()) for values in far}) == 3
