"""The quality of plans, and the time to find them: `make bench`.

Every figure is a ratio of plans priced by the same cost model in one run.
"""

from __future__ import annotations

import pytest
from benchmarks.plans_by_hand import best_by_hand

from pcg.machine import load_machine
from pcg.models import MODELS, build_model
from pcg.models.mlp import SIZES
from search.plan.planner import MeshPlanner
from substitutions.rules.store import load_library


@pytest.mark.benchmark
@pytest.mark.parametrize(
    ("model", "preset"),
    [
        ("mlp-tiny", "local"),
        ("mlp-mnist", "local"),
        ("mlp", "summit"),
        ("mlp", "dgx-a100"),
        ("mlp", "dgx-h100"),
    ],
)
def test_plans_against_the_best_by_hand(model: str, preset: str) -> None:
    machine, library = load_machine(preset).with_nodes(1), load_library()
    graph = build_model(model, None, machine.devices)
    batch = MODELS[model].batch_per_device * machine.devices
    by_hand, name = best_by_hand(machine, SIZES[model], batch, on_all=False)
    on_all, _ = best_by_hand(machine, SIZES[model], batch, on_all=True)
    print(f"\n{model} on {machine.devices} x {preset}: the best by hand is {name}", end="")
    megatron = MeshPlanner(machine, library, "megatron").plan(model, graph)
    joint = MeshPlanner(machine, library).plan(model, graph)
    for planner, planned in {"megatron": megatron, "joint": joint}.items():
        times = by_hand / planned.plan.estimates.step_seconds
        print(f"; {planner} {times:.3f} times as fast ({planned.seconds:.1f} s)", end="")
    print()
    # Megatron's plans use all devices.
    assert megatron.plan.estimates.step_seconds <= on_all
    assert joint.plan.estimates.step_seconds <= min(by_hand, megatron.plan.estimates.step_seconds)
