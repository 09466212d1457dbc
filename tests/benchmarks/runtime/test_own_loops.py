"""A user's loop by a plan takes no longer than by torch's own functions for the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.runtime import own_loops
from support.runs.programs import answer_of
from support.runs.torchrun import environment, torchrun

import unity

MOST = 1.05
"""The largest ratio of seconds."""
PLANS = {"copied": "data-parallel", "sharded": "zero"}


@pytest.mark.benchmark
def test_steps_take_no_longer_than_torchs(tmp_path: Path):
    for name, planner in PLANS.items():
        module, inputs = own_loops.Layers(), own_loops.inputs()
        plan = unity.optimize(module, inputs, planner=planner, devices=4, compare=False, quiet=True)
        plan.save(tmp_path / f"{name}.json")
    command = [*torchrun(own_loops.__file__, 4), str(tmp_path)]
    ratios = answer_of(command, 600, environment())
    print(ratios)
    assert set(ratios) == set(PLANS)
    assert all(ratio <= MOST for ratio in ratios.values())
