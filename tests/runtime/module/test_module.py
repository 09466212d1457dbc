"""Training by a plan in a loop of one's own is what the module itself does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.by_hand import make_plan
from support.plans.random_plans import views_of
from support.runs.own_loop import (
    RANKS,
    assert_same,
    batch_of,
    captured,
    cut_at_random,
    eagerly,
    named,
    on_rank,
    planned,
    words,
)
from support.runs.simulated import on_ranks

from runtime.world.collectives import World

MADE = captured(words(), batch_of(0))
EAGER = eagerly(words())


def agrees(data: st.DataObject) -> None:
    """A random plan trains as torch does, also where a group does all in order, as with NCCL."""
    graph = cut_at_random(data.draw, MADE.graph)
    plan = named(make_plan(MADE.graph, graph, RANKS, data.draw(views_of(graph))), MADE)
    halves, parts = data.draw(st.booleans()), data.draw(st.sampled_from((1, 2)))
    expected = EAGER if parts == 1 else eagerly(words(), parts)
    ordered = data.draw(st.booleans())
    found = on_ranks(
        RANKS, lambda world: on_rank(plan, world, halves=halves, parts=parts), ordered=ordered
    )
    for own in found:
        assert_same(own, expected)


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_any_plan_trains_as_the_module(data):
    agrees(data)


@pytest.mark.soak
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_many_plans_train_as_the_module(data):
    agrees(data)


@pytest.mark.parametrize("planner", ["data-parallel", "zero"])
def test_planners(planner: str):
    plan = planned(MADE, planner)
    for found in on_ranks(RANKS, lambda world: on_rank(plan, world, halves=True)):
        assert_same(found, EAGER)


def test_alone():
    plan = planned(MADE, "joint", 1)
    assert_same(on_rank(plan, World(), halves=False), EAGER)
