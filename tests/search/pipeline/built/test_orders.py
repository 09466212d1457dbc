"""Pipelines in better orders of issue."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans.branched import branched
from support.plans.pipelines import check_read_back, in_stages, layers, model_graph
from support.plans.random_plans import orders_of

from pcg.machine import load_machine
from pcg.placement.schedule import Compute
from pcg.plan.chunks import chunks_of
from pcg.plan.pipeline import misfit
from search.pipeline.planner import PipelinePlanner
from search.report.trace import simulate_plan
from substitutions.rules.store import load_library

EXPERTS = 5
"""The seed of a graph in which experts run side by side."""


def test_experts_of_a_stage_are_issued_so_that_less_is_waited_for(tmp_path):
    machine = load_machine("dgx-a100").with_nodes(1)
    plan = PipelinePlanner(machine, load_library()).plan("experts", branched(EXPERTS)[1]).plan
    assert plan.order
    check_read_back(plan, machine, tmp_path / "plan.json")
    plain = simulate_plan(replace(plan, order=()), machine).step_seconds
    assert plan.estimates.step_seconds < 0.97 * plain


def test_a_chain_in_stages_keeps_its_order():
    machine = load_machine("dgx-a100").with_devices(4)
    plan = PipelinePlanner(machine, load_library()).plan("layers", layers(8, 16, 64)).plan
    assert not plan.order


@settings(max_examples=5)
@given(data=st.data())
def test_operators_keep_their_chunks_in_any_order(data):
    graph = model_graph("candle-uno-tiny")
    plan = in_stages(graph, load_library(), slices=4, stages=2, interleave=2)
    order = data.draw(orders_of(plan.graph))
    other = replace(plan, order=order)
    assert plan.pipeline is not None
    assert misfit(plan.pipeline, plan.graph, plan.views, 4) is None
    assert chunks_by_operator(other) == chunks_by_operator(plan)


def chunks_by_operator(plan):
    steps = plan.schedule()
    numbers = chunks_of(steps, 2, 2, 2).numbers
    return {
        step.node: numbers.get(number)
        for number, step in enumerate(steps.steps)
        if isinstance(step, Compute)
    }
