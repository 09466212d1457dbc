"""Synthetic values: independent of the cut, and with the right distribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs.strategies import drawn_region

from pcg.graph.graph import Leaf
from pcg.types.tensor import ParallelTensor
from runtime.inputs import seeded
from runtime.inputs.seeded import initial_weight, input_batch


def whole_leaf(kind, shape, below=None, name="a"):
    return Leaf(kind, name, len(shape), ParallelTensor.whole(shape), below)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_region_equals_that_part_of_the_whole_tensor(given):
    shape, region = drawn_region(given)
    cut = tuple(slice(start, stop) for start, stop in region)
    weight = whole_leaf("weight", shape)
    assert torch.equal(initial_weight(weight, 3, region), initial_weight(weight, 3)[cut])
    ids = whole_leaf("input", shape, below=7)
    assert torch.equal(input_batch(ids, 3, 5, region), input_batch(ids, 3, 5)[cut])


def test_chunks_do_not_show(monkeypatch):
    leaf = whole_leaf("weight", (37, 11))
    at_once = initial_weight(leaf, 0)
    monkeypatch.setattr(seeded, "CHUNK", 10)
    assert torch.equal(initial_weight(leaf, 0), at_once)


def test_normal_values_are_normal():
    values = input_batch(whole_leaf("input", (1000, 200)), 0, 0)
    assert values.mean().item() == pytest.approx(0.0, abs=0.01)
    assert values.std().item() == pytest.approx(1.0, abs=0.01)
    inside = (values.abs() < 1.0).double().mean().item()
    assert inside == pytest.approx(0.6827, abs=0.005)
    assert torch.corrcoef(values.T)[0, 1:].abs().max() < 0.15


def test_ids_take_every_value_below_their_bound():
    values = input_batch(whole_leaf("input", (6000,), below=6), 0, 0)
    assert values.unique().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    counts = torch.bincount(values.long())
    assert counts.min() > 850


def test_names_seeds_and_steps_make_a_difference():
    leaf, other = whole_leaf("input", (64,)), whole_leaf("input", (64,), name="b")
    seen = [
        input_batch(leaf, 0, 0),
        input_batch(leaf, 0, 1),
        input_batch(leaf, 1, 0),
        input_batch(other, 0, 0),
    ]
    assert len({tuple(values.tolist()) for values in seen}) == len(seen)


def test_a_region_takes_no_more_memory_than_itself():
    """A billion elements would not fit in memory. A thousand of them do."""
    leaf = whole_leaf("weight", (1 << 20, 1 << 14))
    assert initial_weight(leaf, 0, ((5, 6), (1000, 2000))).shape == (1, 1000)
