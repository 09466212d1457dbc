"""A deep model is planned as one with few blocks, and its plan is that of the whole."""

from __future__ import annotations

import pytest
from support.graphs.deep import blocks, with_bias, with_pairs

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.placement.schedule import schedule
from pcg.plan.training import Training
from search.cost.cost import CostModel
from search.cost.memory import peak_memory
from search.cost.simulate import recomputing
from search.cost.unroll import NotAlike
from search.mesh.choose import blocks as module
from search.mesh.choose.blocks import folded
from search.mesh.plan import judging
from search.mesh.plan.planner import MeshPlanner
from substitutions.audit.replay import replay
from substitutions.rules.store import load_library

TRAINING = Training("adam", "bf16")
DEPTH = 14


def planner(devices: int = 4) -> MeshPlanner:
    machine = load_machine("dgx-a100").with_devices(devices)
    return MeshPlanner(machine, load_library(), training=TRAINING)


@pytest.mark.parametrize("model", [blocks, with_bias, with_pairs])
def test_a_deep_plan_is_a_plan_of_the_whole(model, monkeypatch: pytest.MonkeyPatch):
    whole = model(DEPTH)
    free = planner().plan("deep", whole)
    monkeypatch.setattr(module, "FREE", 20)
    assert folded(whole) is not None
    found = planner().plan("deep", whole)
    plan = found.plan
    assert plan.model == whole
    steps = schedule(plan.graph, plan.views)
    cost = CostModel(planner().machine, TRAINING)
    run = recomputing(steps, cost, plan.recompute)
    assert plan.estimates.step_seconds == run.simulation.step_seconds
    assert plan.estimates.peak_memory_bytes == peak_memory(steps, TRAINING, plan.recompute).total
    assert plan.estimates.one_device_seconds == free.plan.estimates.one_device_seconds
    assert not replay(plan, load_library().rules).findings
    # What it gives up is the freedom to cut blocks in the middle unlike each other.
    assert plan.estimates.step_seconds <= 1.02 * free.plan.estimates.step_seconds
    assert found.data_parallel_seconds == pytest.approx(free.data_parallel_seconds)


def test_what_is_unlike_its_few_blocks_is_searched_as_it_is(monkeypatch: pytest.MonkeyPatch):
    whole = blocks(DEPTH)
    free = planner().plan("deep", whole)
    monkeypatch.setattr(module, "FREE", 20)

    def unlike(graph: Graph, more: int) -> object:
        if more:
            raise NotAlike
        return module.ONCE

    monkeypatch.setattr(judging, "repeated", unlike)
    assert planner().plan("deep", whole).plan == free.plan


def test_a_deep_model_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "FREE", 20)
    small = planner()
    monkeypatch.setattr(judging, "memory_limit", lambda *_: 1000)
    with pytest.raises(NegativeAnswer, match="takes least memory misses by"):
        small.plan("deep", blocks(DEPTH))
