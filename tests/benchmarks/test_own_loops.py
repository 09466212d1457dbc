"""A loop of one's own by a plan takes no longer than by torch's own ways to do the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import own_loops
from support.paths import ROOT

import unity

MOST = 1.05
"""Times as long."""
PLANS = {"copied": "data-parallel", "sharded": "zero"}


@pytest.mark.benchmark
def test_steps_take_no_longer_than_torchs(tmp_path: Path):
    for name, planner in PLANS.items():
        module, inputs = own_loops.Layers(), own_loops.inputs()
        plan = unity.optimize(module, inputs, planner=planner, devices=4, compare=False, quiet=True)
        plan.save(tmp_path / f"{name}.json")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = subprocess.run(
        [*start, str(Path(own_loops.__file__)), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    ratios = json.loads(done.stdout.splitlines()[-1])
    print(ratios)
    assert set(ratios) == set(PLANS)
    assert all(ratio <= MOST for ratio in ratios.values())
