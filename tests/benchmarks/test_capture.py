"""Large models are captured in seconds, without their weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import llama
from support.paths import ROOT

pytest.importorskip("transformers")
MOST_GB = 4.0


@pytest.mark.benchmark
@pytest.mark.parametrize(("size", "most"), [("8", 30.0), ("70", 60.0)])
def test_llama(size: str, most: float):
    """In seconds of a processor: a machine that others use takes longer."""
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, str(Path(llama.__file__)), size],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["cpu_seconds"] < most
    assert found["peak_gb"] < MOST_GB
