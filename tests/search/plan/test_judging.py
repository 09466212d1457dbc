"""What a plan without fully sharded weights says about the same plan with them."""

from __future__ import annotations

import pytest
from support.graphs.deep import blocks
from support.graphs.transformer import transformer

from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan.precision import Precision
from pcg.plan.training import Training
from search.cost.cost import CostModel
from search.plan import judging
from search.plan.planner import MeshPlanner
from search.refine.tried import SimulatedChoice
from substitutions.rules.store import load_library

DEEP = {"blocks": blocks(4), "transformer": transformer(2, 16, 128)}
LONG = ("mlp-tiny", "candle-uno-tiny", "resnext50-tiny")
NAMES = (*DEEP, "dlrm-tiny", *(pytest.param(name, marks=pytest.mark.soak) for name in LONG))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("preset", "nodes", "precision"),
    [
        ("summit", 1, "fp32"),
        ("summit", 2, "fp32"),
        ("dgx-a100", 1, "bf16"),
        ("dgx-a100", 2, "bf16"),
    ],
)
def test_no_step_with_fully_sharded_weights_is_faster_than_its_bound(
    name: str, preset: str, nodes: int, precision: Precision, monkeypatch: pytest.MonkeyPatch
):
    bounds: list[float] = []

    def noted(made: SimulatedChoice, cost: CostModel) -> float:
        bound = bounded(made, cost)
        if not made.choice.fully_sharded:
            bounds.append(bound)
        return bound

    bounded = judging._sharded_at_best
    monkeypatch.setattr(judging, "_sharded_at_best", noted)
    machine = load_machine(preset).with_nodes(nodes)
    graph = DEEP[name] if name in DEEP else build_model(name, None, machine.devices)
    planner = MeshPlanner(machine, load_library(), "zero", training=Training("adam", precision))
    planned = planner.plan(name, graph)
    assert min(bounds) <= planned.plan.estimates.step_seconds
