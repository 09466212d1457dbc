"""TePDist's planner: its plans are valid plans, and they run."""

from __future__ import annotations

from functools import lru_cache

import pytest
from support.graphs.transformer import transformer

from pcg.errors import NegativeAnswer
from pcg.machine import load_machine
from runtime.job.job import TrainingOptions
from runtime.job.recipe import Recipe
from search.plan.planner import MeshPlanner
from search.planners.common import PlannerSetting
from search.planners.ilp import Tally
from search.planners.tepdist.planner import TepdistPlanner
from substitutions.audit.replay import replay
from substitutions.rules.store import load_library

RANKS = 4


@lru_cache(maxsize=1)
def library():
    return load_library()


def planner(devices: int = RANKS, **options) -> TepdistPlanner:
    machine = load_machine("dgx-a100").with_devices(devices)
    return TepdistPlanner(PlannerSetting(machine, library()), **options)


@pytest.mark.distributed
def test_plans_follow_from_rules_and_train(ranks):
    """On all devices and as a pipeline: derived by rules of the library, trained as one process."""
    graph = transformer(2, batch=8, length=16)
    search = planner(micro_batches=(4,)).search(Tally())
    made = search.found("small", graph)
    assert made.report.stop == "exhausted"
    assert {one.outline.stages for one in made.pipelines} >= {2, 4}
    two = next(one for one in made.pipelines if one.outline.stages == 2)
    plans = [planner().plan("small", graph).plan, search.plan_of("small", graph, two)]
    assert [plan.pipeline is None for plan in plans] == [True, False]
    options = TrainingOptions(steps=2, recipe=Recipe(rate=0.1), precision="fp64", check=True)
    for plan in plans:
        assert not replay(plan, library().rules).findings
        report = ranks.run(plan, options)
        assert {c.kind for c in report.comparisons} >= {"loss", "weight"}
        assert not [c for c in report.comparisons if not c.passes]


def test_plan_is_at_most_2_percent_slower_than_data_parallelism():
    """Data parallelism is among its strategies, but it does not see which communication is
    hidden."""
    graph = transformer(1)
    machine = load_machine("dgx-a100").with_devices(4)
    data = MeshPlanner(machine, library(), "data-parallel", 60.0).plan("small", graph)
    own = planner().plan("small", graph)
    assert own.plan.estimates.step_seconds <= 1.02 * data.plan.estimates.step_seconds
    assert any(note.startswith("solved ") for note in own.notes)


def test_model_that_does_not_fit_is_a_negative_answer():
    machine = load_machine("dgx-a100").with_devices(2)
    own = {"memory_bytes": 1000, "reserved_bytes": 0}
    device = machine.device.model_copy(update=own)
    setting = PlannerSetting(machine.model_copy(update={"device": device}), library())
    with pytest.raises(NegativeAnswer, match="does not fit"):
        TepdistPlanner(setting, micro_batches=(2,)).plan("small", transformer(1))
