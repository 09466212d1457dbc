"""Plans that recompute operators and communication, on four processes, against training on one."""

from __future__ import annotations

from itertools import product

import pytest
from support.plans.small_plans import small_plan

from pcg.machine import load_machine
from pcg.models import capture_model
from pcg.plan.training import Training
from search.choices import Recompute
from search.pipeline.planner import PipelinePlanner
from search.plan.planner import MeshPlanner
from substitutions.rules.store import load_library

RANKS = 4
EXACT = 1e-9


def exact(report) -> bool:
    """Whether the results are within the tolerance of every new kind of plan."""
    return all(min(c.absolute, c.relative) <= EXACT for c in report.comparisons)


@pytest.mark.parametrize(
    "name",
    [
        "again",
        "zb-h1 again",
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in ("1f1b gathered", "2bw again", "interleaved gathered")
        ),
    ],
)
def test_weights_that_are_gathered_again(name, agree):
    assert exact(agree.of(small_plan(name)))


@pytest.mark.parametrize(
    ("planner", "choice"),
    [
        ("zero", Recompute.FULL),
        pytest.param("zero", Recompute.SELECTIVE, marks=pytest.mark.soak),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in product(("megatron", "pipeline"), (Recompute.SELECTIVE, Recompute.FULL))
        ),
    ],
)
def test_plan_that_recomputes_trains_as_one_process(planner, choice, agree):
    """Sequence parallelism, fully sharded weights, and micro-batches in stages."""
    machine, training = load_machine("local").with_devices(RANKS), Training("adam")
    graph = capture_model("bert-large-tiny", 8, RANKS).graph
    if planner == "pipeline":
        search = PipelinePlanner(machine, load_library(), training=training, recompute=choice)
    else:
        search = MeshPlanner(machine, load_library(), planner, training=training, recompute=choice)
    plan = search.plan("bert", graph).plan
    assert plan.recompute
    assert exact(agree.of(plan, 2))
