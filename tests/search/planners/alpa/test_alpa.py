"""Alpa's planner: its plans are valid plans, and they run."""

from __future__ import annotations

from functools import lru_cache
from itertools import count

import pytest
import torch
from support.graphs.transformer import transformer

from pcg.capture import capture
from pcg.errors import NegativeAnswer
from pcg.machine import Machine, load_machine
from pcg.models.resnext import ResNext, ResNextSize
from pcg.plan.plan import load_plan, save_plan
from runtime.job.job import TrainingOptions
from runtime.job.recipe import Recipe
from search.cost.planned import NoPlanInTime
from search.cost.progress import timed_by
from search.plan.planner import MeshPlanner
from search.planners.alpa.planner import AlpaPlanner
from search.planners.common import PlannerSetting
from search.planners.ilp import Tally
from substitutions.audit.replay import replay
from substitutions.rules.store import load_library

RANKS = 4


@lru_cache(maxsize=1)
def library():
    return load_library()


def planner(machine: Machine | None = None, **options) -> AlpaPlanner:
    machine = machine or load_machine("dgx-a100").with_devices(RANKS)
    return AlpaPlanner(PlannerSetting(machine, library()), **options)


def smaller(machine: Machine, memory: int) -> Machine:
    """The machine with devices that have less memory, all of it for tensors."""
    own = {"memory_bytes": memory, "reserved_bytes": 0}
    return machine.model_copy(update={"device": machine.device.model_copy(update=own)})


WIDE = ResNextSize((1, 1), 16, 1, 64, 24, 32)
"""A Wide-ResNet of two blocks: one group, with four times the channels of its stem."""


def wide_resnet(batch: int, norm_groups: int = 1):
    images = torch.zeros(batch, 3, WIDE.image, WIDE.image)
    labels = torch.zeros(batch, dtype=torch.long)
    return capture(ResNext(WIDE), (images, labels), "wide", norm_groups).graph


def runs(plan, ranks, tmp_path) -> None:
    """Check that the plan is derived by rules of the library, is read as it was written, and trains
    as one process does."""
    assert not replay(plan, library().rules).findings
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").graph == plan.graph
    options = TrainingOptions(steps=2, recipe=Recipe(rate=0.1), precision="fp64", check=True)
    report = ranks.run(plan, options)
    assert {c.kind for c in report.comparisons} >= {"loss", "weight"}
    assert not [c for c in report.comparisons if not c.passes]


@pytest.mark.distributed
@pytest.mark.parametrize("batch", [pytest.param(4, marks=pytest.mark.soak), 16])
def test_a_plan_of_all_devices_runs(batch, ranks, tmp_path):
    planned = planner().plan("small", transformer(2, batch=batch, length=32))
    assert planned.plan.pipeline is None
    runs(planned.plan, ranks, tmp_path)


@pytest.mark.distributed
def test_pipelines_run(ranks, tmp_path):
    graph = transformer(2, batch=8, length=16)
    search = planner(micro_batches=(4,)).search(Tally())
    pipelines = search.found("small", graph).pipelines
    assert {made.outline.stages for made in pipelines} >= {2, 4}
    for made in pipelines:
        assert made.outline.bounds[-1] == len(made.placed.views)
        runs(search.plan_of("small", graph, made), ranks, tmp_path)


@pytest.mark.distributed
def test_a_wide_resnet_runs(ranks, tmp_path):
    """Its norms reduce over the batch, so it has no micro-batches and no stages."""
    planned = planner().plan("wide", wide_resnet(16))
    assert any("no pipelines: pipeline: batch_norm reads all samples" in n for n in planned.notes)
    assert planned.plan.pipeline is None
    runs(planned.plan, ranks, tmp_path)


@pytest.mark.distributed
@pytest.mark.soak
def test_a_wide_resnet_of_local_norms_has_stages(ranks, tmp_path):
    graph = wide_resnet(16, norm_groups=4)
    search = planner(micro_batches=(4,)).search(Tally())
    made = search.found("wide", graph).pipelines[0]
    runs(search.plan_of("wide", graph, made), ranks, tmp_path)


def test_plan_is_at_most_2_percent_slower_than_data_parallelism():
    """Data parallelism is among its strategies, but it does not see which communication is
    hidden."""
    machine, graph = load_machine("dgx-a100").with_devices(4), transformer(1)
    data = MeshPlanner(machine, library(), "data-parallel", 60.0).plan("small", graph)
    own = planner(machine).plan("small", graph)
    assert own.plan.estimates.step_seconds <= 1.02 * data.plan.estimates.step_seconds


@pytest.mark.soak
def test_plan_that_fits_by_recomputation_is_found():
    machine, graph = load_machine("dgx-a100").with_devices(2), transformer(6, batch=64, length=128)
    free = planner(machine, micro_batches=(2, 4)).search(Tally()).found("small", graph)
    assert free.whole is not None
    room = 0.6 * min(free.whole.judged.memory, *(made.memory for made in free.pipelines))
    planned = planner(smaller(machine, int(room)), micro_batches=(2, 4)).plan("small", graph)
    assert planned.plan.estimates.peak_memory_bytes <= int(room)
    assert planned.plan.recompute
    assert not replay(planned.plan, library().rules).findings


def test_model_that_does_not_fit_is_a_negative_answer():
    machine = load_machine("dgx-a100").with_devices(2)
    small = planner(smaller(machine, 1000), micro_batches=(2,))
    with pytest.raises(NegativeAnswer, match="does not fit"):
        small.plan("small", transformer(1))


def test_solved_integer_programs_are_counted():
    tally = Tally()
    tried = planner(micro_batches=(2,)).search(tally).found("small", transformer(1))
    assert 0 < tally.integral <= tally.solved
    assert tally.relaxation_gap < 0.05
    assert tried.report.stop == "exhausted"
    assert f"solved {tally.solved:,} integer programs" in tally.line


def test_time_limit_ends_the_search_with_the_best_plan_or_an_error():
    """Without time there is no plan, and one line says so. A plan that is found in time is kept."""
    with pytest.raises(NoPlanInTime, match="within -1 s"):
        planner(seconds=-1.0).plan("small", transformer(2))
    looks = count()
    with timed_by(lambda: float(next(looks))):
        planned = planner(seconds=300.0, micro_batches=(2, 4)).plan("small", transformer(2))
    assert planned.report.stop == "time"
    assert planned.plan.pipeline is None
