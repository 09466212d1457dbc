"""Random small models, cut and placed at random, with random operators recomputed, against training
on one process. Ranks are threads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.random_plans import RANKS, drawn_plan
from support.runs.simulated import on_ranks

from pcg.plan.plan import Plan
from runtime.job.job import TrainingOptions
from runtime.job.recipe import Recipe
from runtime.program.lower import Lowering
from runtime.train.worker import run_plan


def agrees(plan: Plan, steps: int = 2) -> None:
    """Check that training by a plan agrees with one process, also if a group has one order, as with
    NCCL."""
    lowering = Lowering(plan)
    options = TrainingOptions(steps=steps, recipe=Recipe(rate=0.1), precision="fp64", check=True)
    report = on_ranks(
        RANKS, lambda world: run_plan(lowering, options, world, lambda _: None), ordered=True
    )[0]
    assert report is not None
    assert not [c for c in report.comparisons if not c.passes]


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_a_random_model_cut_at_random(data):
    agrees(drawn_plan(data))


@pytest.mark.soak
@settings(max_examples=1000, deadline=None)
@given(data=st.data())
def test_many_random_models_cut_at_random(data):
    agrees(drawn_plan(data))
