"""Planners recompute if that lets a faster plan fit, and never otherwise."""

from __future__ import annotations

from functools import cache

import pytest
from support.graphs.transformer import transformer

from pcg.errors import NegativeAnswer
from pcg.machine import Machine, load_machine
from pcg.placement.schedule import Schedule
from pcg.plan.plan import Plan
from pcg.plan.training import Training
from search.choices import Recompute
from search.cost.cost import CostModel
from search.cost.memory import peak_memory
from search.cost.units import (
    RecomputedNodes,
    forward_seconds,
    recomputations_to_fit,
    union,
    units_of,
)
from search.pipeline.built.pricer import PipelinePricer
from search.pipeline.planner import PipelinePlanner
from search.plan.planner import MeshPlanner
from search.report.trace import simulate_plan
from substitutions.rules.store import load_library

ADAM = Training("adam")
JOINT = pytest.param("joint", marks=pytest.mark.soak)


def machine(memory: int | None = None) -> Machine:
    made = load_machine("dgx-a100").with_devices(2)
    if memory is None:
        return made
    return made.model_copy(
        update={
            "device": made.device.model_copy(update={"memory_bytes": memory, "reserved_bytes": 0})
        }
    )


@cache
def planned(planner: str, memory: int | None, choice: Recompute) -> Plan:
    graph, on = transformer(2, 8, 128), machine(memory)
    if planner == "pipeline":
        search = PipelinePlanner(on, load_library(), training=ADAM, recompute=choice)
    else:
        search = MeshPlanner(on, load_library(), planner, training=ADAM, recompute=choice)
    plan = search.plan("transformer", graph).plan
    simulated, estimates = simulate_plan(plan, on), plan.estimates
    assert simulated.step_seconds == pytest.approx(estimates.step_seconds, rel=1e-12)
    assert simulated.memory.total == estimates.peak_memory_bytes
    assert memory is None or estimates.peak_memory_bytes <= memory
    return plan


@pytest.mark.parametrize("planner", ["data-parallel", "zero", JOINT, "pipeline"])
def test_no_operator_is_recomputed_if_the_plan_fits(planner: str):
    auto, none = (planned(planner, None, choice) for choice in (Recompute.AUTO, Recompute.NONE))
    assert not auto.recompute
    assert auto.estimates == none.estimates


def test_a_plan_that_does_not_fit_recomputes():
    most = planned("data-parallel", None, Recompute.NONE).estimates
    least = planned("data-parallel", None, Recompute.FULL).estimates
    assert least.peak_memory_bytes < 0.7 * most.peak_memory_bytes
    before = most.step_seconds
    for part in (0.8, 0.5, 0.1):
        room = least.peak_memory_bytes + part * (most.peak_memory_bytes - least.peak_memory_bytes)
        with pytest.raises(NegativeAnswer):
            planned("data-parallel", int(room), Recompute.NONE)
        plan = planned("data-parallel", int(room), Recompute.AUTO)
        assert plan.recompute
        assert before <= plan.estimates.step_seconds <= least.step_seconds * (1 + 1e-9)
        before = plan.estimates.step_seconds


def test_no_tensor_is_recomputed_that_could_be_kept():
    most = planned("data-parallel", None, Recompute.NONE).estimates.peak_memory_bytes
    least = planned("data-parallel", None, Recompute.FULL).estimates.peak_memory_bytes
    dropped = 0
    for tenths in range(1, 10):
        room = least + tenths * (most - least) // 10
        plan = planned("data-parallel", room, Recompute.AUTO)
        steps, cost = plan.schedule(), CostModel(machine(room), ADAM)

        def counted(nodes: RecomputedNodes, steps: Schedule = steps) -> int:
            return peak_memory(steps, ADAM, nodes).total

        given = steps, forward_seconds(steps, cost), counted
        chosen = [unit for unit in units_of(*given) if unit.nodes <= plan.recompute]
        assert union(chosen) == plan.recompute
        rest = [union(other for other in chosen if other is not unit) for unit in chosen]
        assert not any(counted(nodes) <= room for nodes in rest if nodes < plan.recompute)
        greedy = min(len(nodes) for nodes in recomputations_to_fit(*given, room))
        dropped += len(plan.recompute) < greedy
    assert dropped


@pytest.mark.parametrize("part", [0.6, pytest.param(0.7, marks=pytest.mark.soak)])
def test_stages_of_a_pipeline_recompute_no_more_than_they_must(part, monkeypatch):
    room = int(part * planned("pipeline", None, Recompute.NONE).estimates.peak_memory_bytes)
    less = planned("pipeline", room, Recompute.AUTO)
    monkeypatch.setattr(PipelinePricer, "recomputing_less", lambda _, given, work: given)
    more = planned.__wrapped__("pipeline", room, Recompute.AUTO)
    assert 0 < len(less.recompute) < len(more.recompute)
    assert less.estimates.step_seconds < more.estimates.step_seconds


@pytest.mark.parametrize("planner", [JOINT, "pipeline"])
def test_recomputation_makes_no_plan_slower(planner: str):
    room = planned(planner, None, Recompute.NONE).estimates.peak_memory_bytes * 6 // 10
    try:
        none = planned(planner, room, Recompute.NONE).estimates.step_seconds
    except NegativeAnswer:
        none = float("inf")
    assert planned(planner, room, Recompute.AUTO).estimates.step_seconds <= none
