"""A deep model is planned as one with few blocks, and its plan is unfolded to the whole model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from time import process_time

import pytest
from support.graphs.deep import blocks, with_bias, with_pairs
from support.graphs.transformer import transformer
from support.small.rivals import FixedRival

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.placement.schedule import schedule
from pcg.plan.plan import Plan
from pcg.plan.training import Training
from search.choices import Recompute
from search.cost.cost import CostModel
from search.cost.memory import peak_memory
from search.cost.planned import Planned
from search.cost.progress import timed_by
from search.cost.simulate import recomputing
from search.cost.unroll import NotAlike
from search.plan import judging
from search.plan.judging import Judge
from search.plan.planner import MeshPlanner
from search.split import blocks as module
from search.split.blocks import folded
from substitutions.audit.replay import replay
from substitutions.rules.store import load_library

TRAINING = Training("adam", "bf16")
DEPTH = 10


def planner(
    devices: int = 2, memory: int | None = None, recompute: Recompute = Recompute.AUTO
) -> MeshPlanner:
    machine = load_machine("dgx-a100").with_devices(devices)
    if memory is not None:
        device = machine.device.model_copy(update={"memory_bytes": memory, "reserved_bytes": 0})
        machine = machine.model_copy(update={"device": device})
    given = machine, load_library(), "data-parallel" if memory else "joint"
    return MeshPlanner(*given, training=TRAINING, recompute=recompute)


@lru_cache(maxsize=4)
def unfolded(model: Callable[[int], Graph]) -> Planned:
    """The plan of a model of ``DEPTH`` blocks, none of them folded."""
    whole = model(DEPTH)
    assert folded(whole) is None
    return planner().plan("deep", whole)


def bytes_of(plan: Plan) -> int:
    return plan.estimates.peak_memory_bytes


@pytest.mark.parametrize(
    "model", [blocks, *(pytest.param(m, marks=pytest.mark.soak) for m in (with_bias, with_pairs))]
)
def test_a_deep_plan_is_a_plan_of_the_whole(model, monkeypatch: pytest.MonkeyPatch):
    whole, free = model(DEPTH), unfolded(model)
    monkeypatch.setattr(module, "MOST_FREE", 20)
    assert folded(whole) is not None
    planned = planner().plan("deep", whole)
    plan = planned.plan
    assert plan.model == whole
    steps = schedule(plan.graph, plan.views)
    cost = CostModel(planner().machine, TRAINING)
    run = recomputing(steps, cost, plan.recompute)
    assert plan.estimates.step_seconds == run.simulation.step_seconds
    assert plan.estimates.peak_memory_bytes == peak_memory(steps, TRAINING, plan.recompute).total
    assert plan.estimates.one_device_seconds == free.plan.estimates.one_device_seconds
    assert not replay(plan, load_library().rules).findings
    # The folded search gives up the freedom to cut blocks in the middle differently.
    assert plan.estimates.step_seconds <= 1.02 * free.plan.estimates.step_seconds
    assert planned.data_parallel_seconds == pytest.approx(free.data_parallel_seconds)


def test_a_search_that_ends_early_has_the_figures_of_the_whole(monkeypatch: pytest.MonkeyPatch):
    """The whole is then neither simulated nor counted again."""
    whole = blocks(DEPTH)
    monkeypatch.setattr(module, "MOST_FREE", 20)
    counted: list[object] = []
    monkeypatch.setattr(Judge, "_with_recomputation", lambda *given: counted.append(given))
    with timed_by(process_time):
        planned = replace(planner(), seconds=0.0).plan("deep", whole)
    assert planned.report.stop == "time"
    assert not counted
    plan = planned.plan
    steps, cost = schedule(plan.graph, plan.views), CostModel(planner().machine, TRAINING)
    run = recomputing(steps, cost, plan.recompute)
    assert plan.estimates.step_seconds == run.simulation.step_seconds
    assert plan.estimates.peak_memory_bytes == peak_memory(steps, TRAINING, plan.recompute).total
    assert not replay(plan, load_library().rules).findings


@pytest.mark.parametrize("part", [pytest.param(0.8, marks=pytest.mark.soak), 0.3])
def test_a_deep_plan_recomputes_alike_in_all_blocks(part: float, monkeypatch: pytest.MonkeyPatch):
    whole, large = transformer(DEPTH, 16, 128), 1 << 40
    monkeypatch.setattr(module, "MOST_FREE", 20)
    assert folded(whole) is not None
    most = bytes_of(planner(2, large, Recompute.NONE).plan("deep", whole).plan)
    full = planner(2, large, Recompute.FULL).plan("deep", whole).plan
    least = bytes_of(full)
    assert least < 0.7 * most
    # A part of a device's memory stays free.
    room = least + int(part * (most - least))
    limited = planner(2, large)
    used = limited.machine.memory_limit() / large
    plan = planner(2, int(room / used)).plan("deep", whole).plan
    assert bytes_of(plan) <= room
    assert plan.recompute
    steps = schedule(plan.graph, plan.views)
    cost = CostModel(limited.machine, TRAINING)
    run = recomputing(steps, cost, plan.recompute)
    assert plan.estimates.step_seconds == run.simulation.step_seconds
    assert bytes_of(plan) == peak_memory(steps, TRAINING, plan.recompute).total
    assert run.simulation.step_seconds <= full.estimates.step_seconds * (1 + 1e-9)
    monkeypatch.setattr(module, "MOST_FREE", 100_000)
    free = planner(2, int(room / used)).plan("deep", whole).plan
    assert plan.estimates.step_seconds <= 1.1 * free.estimates.step_seconds


def test_graph_unlike_its_folded_form_is_searched_unfolded(monkeypatch: pytest.MonkeyPatch):
    whole, free = blocks(DEPTH), unfolded(blocks)
    monkeypatch.setattr(module, "MOST_FREE", 20)

    def unlike(graph: Graph, more: int) -> object:
        if more:
            raise NotAlike
        return module.ONCE

    monkeypatch.setattr(judging, "repeated", unlike)
    assert planner().plan("deep", whole).plan == free.plan


def test_a_deep_model_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_FREE", 20)
    small = planner()
    monkeypatch.setattr(judging, "memory_limit", lambda *_: 1000)
    with pytest.raises(NegativeAnswer, match="takes least memory misses by"):
        small.plan("deep", blocks(DEPTH))


@pytest.mark.parametrize("rival", [1.05, 100.0])
def test_fully_sharded_weights_are_tried_beside_a_slower_rival(
    rival: float, monkeypatch: pytest.MonkeyPatch
):
    """Every device updates a part of the weights. Bounds that count whole updates, or the exchange
    of whole gradients, say nothing about such a plan."""
    monkeypatch.setattr(module, "MOST_FREE", 20)
    alone = replace(planner(8), family="zero").plan("deep", blocks(DEPTH))
    seconds = alone.plan.estimates.step_seconds
    joint = replace(planner(8), rival=FixedRival(rival * seconds))
    assert joint.plan("deep", blocks(DEPTH)).plan.estimates.step_seconds <= seconds
