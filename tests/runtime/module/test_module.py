"""Training by a plan in a loop of one's own is what the module itself does."""

from __future__ import annotations

import pytest
import torch
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
    words,
)
from support.runs.simulated import on_ranks
from torch import nn

from pcg.machine import load_machine
from pcg.plan.plan import Plan
from runtime.module.module import ParallelModule
from runtime.program.lower import Lowering
from runtime.world.collectives import World
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library
from unity.support.planners import planner_of

MADE = captured(words(), batch_of(0))
EAGER = eagerly(words())


def planned(made, planner: str, ranks: int = RANKS) -> Plan:
    machine, library = load_machine("local").with_devices(ranks), load_library()
    made_of = planner_of(planner, machine, library, 10.0, "adam", None).plan("words", made.graph)
    return of_module(made_of.plan, made, library.rules)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_plan_trains_as_the_module(data):
    graph = cut_at_random(data.draw, MADE.graph)
    plan = named(make_plan(MADE.graph, graph, RANKS, data.draw(views_of(graph))), MADE)
    halves, parts = data.draw(st.booleans()), data.draw(st.sampled_from((1, 2)))
    expected = EAGER if parts == 1 else eagerly(words(), parts)
    for found in on_ranks(RANKS, lambda w: on_rank(plan, w, halves=halves, parts=parts)):
        assert_same(found, expected)


@pytest.mark.parametrize("planner", ["data-parallel", "zero"])
def test_planners(planner: str):
    plan = planned(MADE, planner)
    for found in on_ranks(RANKS, lambda world: on_rank(plan, world, halves=True)):
        assert_same(found, EAGER)


def test_alone():
    plan = planned(MADE, "joint", 1)
    assert_same(on_rank(plan, World(), halves=False), EAGER)
