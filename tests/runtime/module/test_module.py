"""A plain training loop by a plan does the same as the module itself."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import examples
from support.runs.own_loop import (
    RANKS,
    assert_same,
    eagerly,
    on_rank,
    words,
    words_cut_at_random,
    words_planned,
)
from support.runs.simulated import on_ranks

from runtime.world.collectives import World


@cache
def expected_course():
    """The training of the module itself."""
    return eagerly(words())


def agrees(data: st.DataObject) -> None:
    """Check that a random plan trains as torch does, also if a group has one order, as with
    NCCL."""
    plan = words_cut_at_random(data.draw)
    halves, parts = data.draw(st.booleans()), data.draw(st.sampled_from((1, 2)))
    expected = expected_course() if parts == 1 else eagerly(words(), parts)
    ordered = data.draw(st.booleans())
    actual = on_ranks(
        RANKS, lambda world: on_rank(plan, world, halves=halves, parts=parts), ordered=ordered
    )
    for own in actual:
        assert_same(own, expected)


@examples(3)
@given(data=st.data())
def test_any_plan_trains_as_the_module(data):
    agrees(data)


@pytest.mark.soak
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_many_plans_train_as_the_module(data):
    agrees(data)


@pytest.mark.parametrize("planner", ["data-parallel", "zero"])
def test_plans_of_every_planner_train_as_the_module(planner: str):
    plan = words_planned(planner)
    for reported in on_ranks(RANKS, lambda world: on_rank(plan, world, halves=True)):
        assert_same(reported, expected_course())


def test_plan_for_one_device_trains_as_the_module():
    plan = words_planned("joint", 1)
    assert_same(on_rank(plan, World(), halves=False), expected_course())
