"""Stages of several chunks: priced and held as they run, and chosen if they pay."""

from __future__ import annotations

import pytest
from support.plans.pipelines import check_read_back, layers, planned
from support.plans.small_plans import small_plan

from pcg.machine import load_machine
from pcg.placement.schedule import schedule
from pcg.plan.pipeline import under_way
from search.cost.cost import CostModel
from search.cost.events import usage
from search.map.rules.cuts import Cuts
from search.pipeline import tries
from search.pipeline.built.build import PipelineParts
from search.pipeline.built.price import StageGroups, stage_bytes, stage_runs, stage_seconds
from search.pipeline.clock import step_seconds
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import interleaved, outline
from search.pipeline.planner import PipelinePlanner
from search.pipeline.stage_batches import alike
from search.pipeline.streams import streams
from search.report.describe import pipeline_text
from search.report.trace import simulate_plan
from substitutions.rules.store import load_library


@pytest.fixture(scope="module")
def library():
    return load_library()


def batches_of(graph, library, machine, slices: int) -> MicroBatches:
    source = streams(graph, library)
    return MicroBatches(source, CostModel(machine), Cuts.of_rules(library.concrete(graph)), slices)


@pytest.mark.parametrize("slices", [6, 8, 16])
@pytest.mark.parametrize("interleave", [2, 3])
def test_stages_hold_the_saved_tensors_of_all_their_chunks(slices, interleave, library):
    """Equal layers with one weight each. Every turn of a stage is like any other, so memory peaks
    when most passes are under way."""
    machine = load_machine("summit").with_devices(3)
    batches = batches_of(layers(3 * interleave, 96, 64), library, machine.with_devices(1), slices)
    first = [i for i, node in enumerate(batches.nodes) if node.name == "matmul"]
    cut = PipelineParts(
        batches, batches.choose(), (*first, len(batches.nodes)), interleave
    ).derived()
    groups = StageGroups(3, 1, slices, interleave)
    held = stage_bytes(schedule(cut.graph, cut.views), batches.cost, groups, "1f1b")
    weight, micro = 64 * 64 * 4, 96 // slices * 64 * 4
    # For each pass that waits, the operand that came and the output of relu; for the one at work
    # two gradients as well.
    flights = [under_way(s, 3, slices, interleave) for s in range(2)]
    assert held[:-1] == tuple(2 * interleave * weight + (2 * n + 2) * micro for n in flights)


def test_an_outline_is_estimated_as_it_is_priced(library):
    machine = load_machine("dgx-h100").with_devices(4)
    batches = batches_of(layers(16, 4096, 4096), library, machine.with_devices(1), 4)
    one = outline(alike(batches, machine, 4), "1f1b", (batches.choose(),) * 4)
    assert one is not None
    outlined = interleaved(one)
    assert outlined.interleave > 1
    assert outlined.seconds < one.seconds
    cut = PipelineParts(batches, outlined.chosen, outlined.bounds, outlined.interleave).derived()
    steps, groups = schedule(cut.graph, cut.views), StageGroups(4, 1, 4, outlined.interleave)
    priced = stage_seconds(steps, CostModel(machine), groups)
    assert len(priced) == 4 * outlined.interleave
    step = step_seconds(priced, 4, interleave=outlined.interleave)
    assert step == pytest.approx(outlined.seconds, rel=0.05)


def test_chunks_together_take_the_time_of_their_stage(library):
    plan = planned("candle-uno-tiny", library, 8, 4, interleave=2)
    cost = CostModel(load_machine("dgx-a100").with_devices(4), plan.training)
    groups = StageGroups(4, 1, 8, 2)
    for device, stage in enumerate(stage_runs(schedule(plan.graph, plan.views), cost, groups)):
        assert sorted(i for chunk in stage.chunks for i in chunk.steps) == list(stage.repeated)
        assert all(chunk.steps for chunk in stage.chunks)
        each = [usage(chunk.micro, device) for chunk in stage.chunks]
        every = usage(stage.micro, device)
        assert sum(one.computing for one in each) == pytest.approx(every.computing)
        assert sum(one.communicating for one in each) == pytest.approx(every.communicating)


def test_stages_get_as_many_chunks_as_pay(library, tmp_path, monkeypatch):
    machine = load_machine("dgx-a100").with_devices(4)
    graph = layers(16, 16, 4096)
    plan = PipelinePlanner(machine, library).plan("layers", graph).plan
    assert plan.pipeline is not None
    assert plan.pipeline.interleave > 1
    assert f", {plan.pipeline.interleave} chunks a stage" in str(pipeline_text(plan))
    check_read_back(plan, machine, tmp_path / "plan.json")
    monkeypatch.setattr(tries, "interleaved", lambda one: one)
    alone = PipelinePlanner(machine, library).plan("layers", graph).plan
    assert plan.estimates.step_seconds < alone.estimates.step_seconds


def test_delayed_weights_have_one_chunk(library):
    machine = load_machine("dgx-a100").with_devices(4)
    plan = PipelinePlanner(machine, library, "2bw").plan("layers", layers(8, 16, 4096)).plan
    assert plan.pipeline is not None
    assert plan.pipeline.interleave == 1


def test_a_timeline_shows_every_chunk_within_the_step():
    plan = small_plan("interleaved")
    simulated = simulate_plan(plan, load_machine("dgx-a100").with_devices(4))
    run = simulated.pipeline
    assert run is not None
    assert simulated.step_seconds == pytest.approx(max(one.end for one in run.passes))
    for device in range(4):
        stage, events = device // 2, list(run.events(device))
        own = [one for one in run.passes if one.stage == stage]
        assert {one.chunk for one in own} == {0, 1}
        assert {event.batch for event in events} >= {0, 1, 2, 3}
        for event in events:
            assert event.start >= -1e-12
            assert event.start + event.seconds <= simulated.step_seconds * (1 + 1e-9)
        phases = run.phases(stage)
        assert sum(phases.values()) == pytest.approx(simulated.step_seconds)


@pytest.mark.parametrize(
    ("interleave", "samples"),
    [pytest.param(2, 64), pytest.param(3, 3072, marks=pytest.mark.soak)],
)
def test_pipelines_of_64_stages_with_one_sample_a_micro_batch(interleave, samples, library):
    """Like the largest ones of Megatron-LM: no count is too large, and the wait for equal layers is
    close to the closed form."""
    machine = load_machine("dgx-a100").with_nodes(8)
    graph = layers(64 * interleave, samples, 64)
    batches = batches_of(graph, library, machine.with_devices(1), samples)
    first = [i for i, node in enumerate(batches.nodes) if node.name == "matmul"]
    bounds = (0, *first[1:], len(batches.nodes))
    cut = PipelineParts(batches, batches.choose(), bounds, interleave).derived()
    steps, groups = schedule(cut.graph, cut.views), StageGroups(64, 1, samples, interleave)
    cost = CostModel(machine)
    chunks = stage_seconds(steps, cost, groups)
    step = step_seconds(chunks, samples, interleave=interleave)
    slowest = max(stage.busy(samples) for stage in chunks) * interleave
    bubble = 63 / (interleave * samples)
    assert slowest < step < 1.1 * slowest * (1 + bubble)
    held = stage_bytes(steps, cost, groups, "1f1b")
    assert held[0] > held[-2]
