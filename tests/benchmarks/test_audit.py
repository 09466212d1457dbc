"""Audits of the paper's models at 192 devices: how long they take, and for how large plans."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter

import pytest
from typer.testing import CliRunner

from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan import save_plan
from search.mesh.planner import MeshPlanner
from substitutions.store import load_library
from unity.audit import app

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize("model", ["mlp", "dlrm", "xdl", "candle-uno", "bert-large"])
def test_audit(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = load_machine("summit").with_nodes(32)
    graph = build_model(model, None, machine.devices)
    plan, path = MeshPlanner(machine, load_library()).plan(model, graph).plan, tmp_path / "p.json"
    save_plan(plan, path)
    start = perf_counter()
    result = CliRunner().invoke(app, [str(path), "--json"])
    seconds = perf_counter() - start
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    with capsys.disabled():
        print(
            f"\n{model}: {found['steps']:,} steps, {path.stat().st_size:,} bytes, audited in"
            f" {seconds:.1f} s (replay {found['replay_seconds']:.1f} s, proofs"
            f" {found['proof_seconds']:.1f} s, the rest reads files and captures the model)"
        )
