"""Plans with pipelines: priced as they run, within memory, equal in every run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from support.mixed import mixed
from support.plans.pipelines import check_read_back, layers

from pcg.errors import InputError, NegativeAnswer
from pcg.graph.graph import Graph
from pcg.machine import Machine, load_machine
from pcg.machine_part import machine_part
from pcg.placement.schedule import schedule
from pcg.plan.plan import Plan, load_plan, save_plan
from runtime.program.lower import Lowering
from search.choices import Recompute
from search.cost.cost import CostModel
from search.cost.planned import DataParallelStep, Planned, SearchReport
from search.cost.simulate import simulate
from search.map.rules.cuts import Cuts
from search.pipeline.beside import WithPipelines
from search.pipeline.built.build import PipelineParts
from search.pipeline.built.price import StageGroups, stage_bytes, stage_seconds
from search.pipeline.built.pricer import BuiltPipeline, PipelinePricer
from search.pipeline.clock import step_seconds
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import outline, stage_counts
from search.pipeline.planner import PipelinePlanner
from search.pipeline.stage_batches import alike
from search.pipeline.stage_memory import PLAIN, Sparing
from search.pipeline.streams import streams
from search.report.describe import pipeline_text
from search.split.colours import MOST_FREE
from substitutions.rules.store import load_library


@pytest.fixture(scope="module")
def library():
    return load_library()


def batches_of(graph: Graph, library, machine: Machine, slices: int) -> MicroBatches:
    source = streams(graph, library)
    return MicroBatches(source, CostModel(machine), Cuts.of_rules(library.concrete(graph)), slices)


def small(machine: Machine, memory: float) -> Machine:
    device = machine.device.model_copy(update={"memory_bytes": int(memory)})
    return machine.model_copy(update={"device": device})


def test_one_stage_of_one_micro_batch_takes_the_simulated_time(library):
    """Nothing can overlap on one device, so both are the sum of all tasks."""
    machine = load_machine("summit").with_devices(1)
    graph = layers(3, 64, 96)
    batches = batches_of(graph, library, machine, 1)
    cut = PipelineParts(batches, batches.choose(), (0, len(batches.nodes))).derived()
    steps = schedule(cut.graph, cut.views)
    (stage,) = stage_seconds(steps, batches.cost, StageGroups(1, 1, 1))
    assert stage.busy(1) == pytest.approx(simulate(steps, batches.cost).step_seconds)


def test_small_micro_batches_pay_for_every_kernel(library):
    """Twice as many slices have half the arithmetic each, and as many kernel launches each."""
    machine = load_machine("summit").with_devices(1)
    graph = layers(2, 64, 512)
    busy: list[float] = []
    for slices in (2, 4):
        batches = batches_of(graph, library, machine, slices)
        cut = PipelineParts(batches, batches.choose(), (0, len(batches.nodes))).derived()
        steps = schedule(cut.graph, cut.views)
        (stage,) = stage_seconds(steps, batches.cost, StageGroups(1, 1, slices))
        busy.append(stage.forward)
        streaming = len(batches.streams.axes)
        assert stage.forward > streaming * machine.device.kernel_latency
    launches = streaming * machine.device.kernel_latency
    # Weights are read whole for every slice, so half a slice takes a little more than half.
    assert 2 * (busy[1] - launches) >= busy[0] - launches
    assert busy[1] < busy[0] < 2 * busy[1]


@pytest.mark.parametrize("stages", [2, 6])
def test_an_outline_is_estimated_as_it_is_priced(stages, library):
    machine = load_machine("summit").with_devices(6)
    batches = batches_of(layers(12, 3072, 1536), library, machine.with_devices(6 // stages), 8)
    outlined = outline(alike(batches, machine, stages), "1f1b", (batches.choose(),) * stages)
    assert outlined is not None
    cut = PipelineParts(batches, outlined.chosen, outlined.bounds).derived()
    priced = stage_seconds(
        schedule(cut.graph, cut.views), CostModel(machine), StageGroups(stages, 6 // stages, 8)
    )
    assert step_seconds(priced, 8) == pytest.approx(outlined.seconds, rel=0.05)


@pytest.mark.parametrize("kind", ["1f1b", "2bw"])
def test_early_stages_hold_more_micro_batches(kind, library):
    """Equal layers with one weight each. A second version adds one weight."""
    machine = load_machine("summit").with_devices(6)
    batches = batches_of(layers(6, 96, 64), library, machine.with_devices(1), 8)
    sliced = [i for i, node in enumerate(batches.nodes) if node.name == "matmul"]
    bounds = (*sliced, len(batches.nodes))
    cut = PipelineParts(batches, batches.choose(), bounds).derived()
    steps = schedule(cut.graph, cut.views)
    groups = StageGroups(6, 1, 8)
    held = stage_bytes(steps, batches.cost, groups, kind)
    weight, micro = 64 * 64 * 4, 96 // 8 * 64 * 4
    copies = 2 if kind == "1f1b" else 3
    # For a micro-batch that waits, the operand that came and the output of relu; for the one at
    # work two gradients as well.
    assert held[:-1] == tuple(copies * weight + (2 * (6 - s) + 2) * micro for s in range(5))
    assert all(a > b for a, b in pairwise(held[:-1]))


def test_stages_do_not_straddle_units():
    machine = load_machine("summit").with_nodes(2)
    assert stage_counts(machine) == [(1, 12), (2, 6), (4, 3), (12, 1)]
    assert stage_counts(machine.with_devices(5)) == [(1, 5), (5, 1)]
    deep = stage_counts(load_machine("dgx-a100").with_nodes(128))
    assert [stages for stages, _ in deep] == [2**n for n in range(11)]


@pytest.fixture(scope="module")
def planned(library):
    machine = load_machine("summit").with_nodes(1)
    return PipelinePlanner(machine, library).plan("layers", layers(12, 3072, 1536)).plan


def test_a_plan_is_a_pipeline_on_groups_of_devices(planned):
    pipeline = planned.pipeline
    assert pipeline is not None
    assert pipeline.stages > 1
    size = 6 // pipeline.stages
    order = [min(v.devices) // size for v in planned.views.values()]
    assert order == sorted(order)
    assert set(order) == set(range(pipeline.stages))
    assert all(len({d // size for d in v.devices}) == 1 for v in planned.views.values())
    slices = {t for n in planned.graph.nodes for x in n.types for t in x.degrees.slices}
    assert slices == {1, pipeline.micro_batches}
    assert pipeline_text(planned) == (
        f"pipeline {pipeline.stages} stages x {pipeline.micro_batches} micro-batches, ZB-H1"
    )


def test_saved_pipeline_is_read_again_and_lowered(planned, tmp_path):
    path = tmp_path / "plan.json"
    save_plan(planned, path)
    again = load_plan(path)
    assert (again.pipeline, again.graph.digest) == (planned.pipeline, planned.graph.digest)
    pipeline = Lowering(again, str(path)).program(0).pipeline
    assert pipeline is not None
    assert len(pipeline.slices) == planned.pipeline.micro_batches


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"stages":S', '"stages":4', "4 stages, expected a divisor of 6 devices"),
        ('"micro_batches":M', '"micro_batches":512', "512 micro-batches, slices of the graph: "),
        ('"schedule":"zb-h1"', '"schedule":"gpipe"', "schedule"),
    ],
)
def test_pipeline_decisions_that_do_not_fit_the_plan_are_refused(
    old, new, problem, planned, tmp_path
):
    path = tmp_path / "plan.json"
    save_plan(planned, path)
    pipeline = planned.pipeline
    old = old.replace("S", str(pipeline.stages)).replace("M", str(pipeline.micro_batches))
    text = path.read_text().replace(": ", ":")
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=problem):
        load_plan(path)


def test_planning_twice_gives_the_same_plan(planned, library):
    machine = load_machine("summit").with_nodes(1)
    again = PipelinePlanner(machine, library).plan("layers", layers(12, 3072, 1536)).plan
    assert again.graph.digest == planned.graph.digest
    assert again.views == planned.views
    assert (again.derivation, again.pipeline) == (planned.derivation, planned.pipeline)
    assert again.estimates.step_seconds == planned.estimates.step_seconds


def test_no_flush_is_no_slower(planned, library):
    machine = load_machine("summit").with_nodes(1)
    free = PipelinePlanner(machine, library, "2bw").plan("layers", layers(12, 3072, 1536)).plan
    assert free.estimates.step_seconds <= planned.estimates.step_seconds
    assert "two versions of weights" in str(pipeline_text(free))


def test_less_memory_gives_a_plan_that_takes_less_or_a_negative_answer(planned, library):
    machine = load_machine("summit").with_nodes(1)
    graph, need = layers(12, 3072, 1536), planned.estimates.peak_memory_bytes
    assert need <= machine.device.memory_bytes
    tight = small(machine, 0.9 * need)
    less = PipelinePlanner(tight, library).plan("layers", graph).plan.estimates
    assert less.peak_memory_bytes <= tight.device.memory_bytes
    with pytest.raises(NegativeAnswer, match="no pipeline that fits"):
        PipelinePlanner(small(machine, 1e6), library).plan("layers", graph)


def test_batch_of_one_sample_is_refused(library):
    machine = load_machine("summit").with_nodes(1)
    with pytest.raises(NegativeAnswer) as none:
        PipelinePlanner(machine, library).plan("layers", layers(2, 1, 16))
    problem = "batch 1 cannot be cut in micro-batches, expected 2 or more samples"
    assert str(none.value) == f"pipeline: {problem}"


def test_any_number_of_samples_makes_micro_batches(library):
    machine = load_machine("summit").with_nodes(1)
    pipeline = PipelinePlanner(machine, library).plan("layers", layers(2, 7, 16)).plan.pipeline
    assert pipeline is not None
    assert pipeline.micro_batches == 7


def test_error_states_the_memory_that_a_small_machine_lacks(library):
    """Twelve weights with their gradients, cut in six at best, need more than a device has."""
    machine = small(load_machine("summit").with_nodes(1), 1e6)
    with pytest.raises(NegativeAnswer) as none:
        PipelinePlanner(machine, library).plan("layers", layers(12, 3072, 1536))
    match = re.fullmatch(r"layers .* misses by (.*) GB a device", str(none.value))
    assert match is not None
    weights = 2 * 12 * 1536 * 1536 * 4 / 6
    assert weights - 1e6 <= float(match[1]) * 1e9 + 5e6 <= 1.5 * weights


def test_pipeline_within_an_impossible_time_is_a_negative_answer(library):
    machine = load_machine("summit").with_nodes(1)
    with pytest.raises(NegativeAnswer, match="takes less than 1e-12 s a step"):
        PipelinePlanner(machine, library, faster_than=1e-12).plan("layers", layers(2, 8, 16))


@pytest.mark.parametrize(("layer_count", "batch"), [(12, 12288), (6, 49152)])
def test_a_pipeline_is_found_if_it_is_faster_than_estimated(library, layer_count, batch):
    """It has a pass for weights, of which estimates know nothing."""
    machine, graph = load_machine("summit").with_nodes(4), layers(layer_count, batch, 4096)
    best = PipelinePlanner(machine, library).plan("layers", graph).plan.estimates.step_seconds
    asked = PipelinePlanner(machine, library, faster_than=1.01 * best)
    assert asked.plan("layers", graph).plan.estimates.step_seconds == best


@pytest.mark.parametrize("fast_first", [True, False])
def test_stages_on_faster_devices_have_more_to_do(library, fast_first, tmp_path):
    """An A100 has as many more equal layers than a V100 as it is faster, and each stage has the
    memory of its own devices."""
    kinds = [load_machine("dgx-a100"), load_machine("p3-16xlarge")]
    machine = mixed(*(kinds if fast_first else kinds[::-1]), per_node=1, nodes=2)
    graph = layers(24, 4096, 4096)
    plan = PipelinePlanner(machine, library).plan("layers", graph).plan
    assert plan.pipeline is not None
    assert plan.pipeline.stages == 2
    products = [
        sum(node.name == "matmul" and stage in view.devices for node, view in plan.views.items())
        for stage in range(2)
    ]
    assert sum(products) == 24
    alone = [CostModel(machine_part(machine, stage, 1)) for stage in range(2)]
    times = [cost.compute_seconds(graph.operators[0], frozenset({0, 1})) for cost in alone]
    share = sum(times[1]) / (sum(times[0]) + sum(times[1]))
    assert products[0] == pytest.approx(24 * share, abs=1.5)
    check_read_back(plan, machine, tmp_path / "plan.json")


def test_a_stage_may_take_the_memory_of_its_own_devices(library):
    """A stage on the device with more memory holds more than the other device has."""
    few, many = load_machine("p3-16xlarge").with_memory(4 * 10**9), load_machine("dgx-a100")
    machine = mixed(many, few, per_node=1, nodes=2)
    least = machine.memory_limit()
    graph = layers(12, 1024, 9600)
    plan = PipelinePlanner(machine, library, recompute=Recompute.NONE).plan("layers", graph).plan
    assert plan.pipeline is not None
    assert plan.pipeline.stages == 2
    own = plan.pipeline
    held = stage_bytes(
        schedule(plan.graph, plan.views),
        CostModel(machine, plan.training),
        StageGroups(own.stages, 1, own.micro_batches, own.interleave),
        own.schedule,
    )
    assert held[0] > least
    for stage, taken in enumerate(held):
        assert taken <= machine.memory_limit((stage,))


@dataclass(frozen=True)
class Known:
    """A planner that returns a given plan, or has none."""

    plan_of: Plan | None

    def plan(self, name: str, graph: Graph) -> Planned:
        if self.plan_of is None:
            raise NegativeAnswer(f"{name}: nothing fits")
        return Planned(
            self.plan_of, SearchReport(1, 1, "exhausted", {}), 0.5, DataParallelStep(1.0)
        )


def test_the_better_of_two_planners(planned):
    def taking(seconds: float) -> Known:
        estimates = planned.estimates.model_copy(update={"step_seconds": seconds})
        return Known(replace(planned, estimates=estimates))

    for plain, pipelined, best in ((1.0, 2.0, 0), (2.0, 1.0, 1), (1.0, 1.0, 0)):
        both = taking(plain), taking(pipelined)
        better = WithPipelines(both[0], lambda *_, other=both[1]: other).plan("m", planned.model)
        assert better.plan is both[best].plan_of
        assert better.data_parallel_seconds == 1.0
    some, none = taking(1.0), Known(None)
    for one, other in ((some, none), (none, some)):
        both = WithPipelines(one, lambda *_, other=other: other)
        assert both.plan("m", planned.model).plan is some.plan_of
    with pytest.raises(NegativeAnswer, match="nothing fits"):
        WithPipelines(none, lambda *_: none).plan("m", planned.model)


@pytest.mark.parametrize(
    ("operators", "built"),
    [(MOST_FREE, [1.0, 1.1, 1.3]), (MOST_FREE + 1, [1.0, 1.1, 1.5])],
    ids=["small", "deep"],
)
def test_candidates_of_a_deep_model_far_above_the_best_are_not_built(
    operators, built, library, monkeypatch
):
    """Except candidates with recomputation in their estimate, which may take less time."""
    planner = PipelinePlanner(load_machine("local"), library)
    batches = SimpleNamespace(nodes=range(operators))
    remade = Sparing(left=0.5, time=4 / 3)
    ranked = [
        SimpleNamespace(batches=batches, seconds=seconds, sparing=sparing, stages=2, by_hand=False)
        for seconds, sparing in ((1.0, PLAIN), (1.1, PLAIN), (1.3, PLAIN), (1.5, remade))
    ]
    monkeypatch.setattr(PipelinePricer, "built", lambda _, one: replace(FOUND, seconds=one.seconds))
    given: Any = ranked
    assert [one.seconds for one in planner._finalists(given)] == built


def test_estimates_are_corrected_by_pipelines_of_as_many_stages(library, monkeypatch):
    """Pipelines of 8 stages take 1.3 times as long as estimated, those of 4 stages as long."""
    outlines = [(8, 1.0), (8, 1.05), (8, 1.1), (4, 1.2), (4, 1.25), (2, 1.4)]
    batches = SimpleNamespace(nodes=range(30))
    ranked: Any = [
        SimpleNamespace(
            batches=batches, seconds=seconds, sparing=PLAIN, stages=stages, by_hand=False
        )
        for stages, seconds in outlines
    ]

    def built(_: PipelinePricer, one: Any) -> BuiltPipeline:
        return replace(FOUND, seconds=one.seconds * (1.3 if one.stages == 8 else 1.0))

    monkeypatch.setattr(PipelinePricer, "built", built)
    finalists = PipelinePlanner(load_machine("local"), library)._finalists(ranked)
    assert [one.seconds for one in finalists] == [1.3, 1.2, 1.25]


NOTHING: Any = None
FOUND = BuiltPipeline(NOTHING, NOTHING, NOTHING, 0.0, 0, 0)
