"""Measured against predicted memory of data parallelism and of fully sharded weights: `make
bench`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs.rank_group import Ranks

from pcg.machine import load_machine
from pcg.models import capture_model
from pcg.models.mlp import mlp
from pcg.plan.training import Training
from search.plan.planner import MeshPlanner
from substitutions.rules.store import load_library

RANKS, TOLERANCE = 4, 0.1
GRAPHS = {
    "mlp 16 x 1024": lambda: mlp(64, (1024,) * 17),
    "bert-large-tiny": lambda: capture_model("bert-large-tiny", 256, RANKS).graph,
}


@pytest.mark.benchmark
def test_peaks_are_as_predicted(tmp_path: Path) -> None:
    """Bytes of live tensors. Allocators and communication libraries take more."""
    library, machine = load_library(), load_machine("local").with_devices(RANKS)
    ranks = Ranks(tmp_path, RANKS)
    print(f"\n{'model':16} {'planner':14} {'optimizer':9} {'predicted':>10} {'measured':>10} ratio")
    try:
        for name, graph in GRAPHS.items():
            for planner in ("data-parallel", "zero"):
                for optimizer in ("sgd", "adam"):
                    search = MeshPlanner(machine, library, planner, training=Training(optimizer))
                    plan = search.plan(name, graph()).plan
                    wanted = plan.estimates.peak_memory_bytes
                    actual = max(ranks.peaks(plan, optimizer))
                    words = f"{name:16} {planner:14} {optimizer:9}"
                    sizes = f"{wanted / 1e6:8.1f}MB {actual / 1e6:8.1f}MB"
                    print(f"{words} {sizes} {actual / wanted:.3f}")
                    assert actual == pytest.approx(wanted, rel=TOLERANCE)
    finally:
        ranks.stop()
