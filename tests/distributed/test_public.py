"""Public models on four processes: losses, gradients and weights equal those of torch alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.paths import ROOT

pytest.importorskip("transformers")
pytestmark = [pytest.mark.distributed, pytest.mark.soak]

COMMAND = ROOT / "tests" / "benchmarks" / "public" / "training.py"


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("recommender", "data,tensor"),
        ("resnet", "zero"),
        ("gpt2", "tensor"),
        # Queries without a key.
        ("padded/gpt2", "data"),
        ("padded/llama", "data,tensor,pipeline"),
        # Each micro-batch has a different number of labels that count.
        ("ignoring/llama", "data,pipeline"),
        # Experts whose weights are one weight in the graph.
        ("mixtral", "tensor"),
    ],
)
def test_training_by_a_plan_is_that_of_torch(name: str, ways: str) -> None:
    """In a separate process: ranks are forked from a process that has no threads yet."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(COMMAND), name, "--ways", ways],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count(f"| {name} |") == len(ways.split(","))
