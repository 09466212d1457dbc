"""Audits of the paper's models at 192 devices: their time, and the sizes of the plans."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter

import pytest
from typer.testing import CliRunner

from pcg.machine import load_machine
from pcg.models import capture_model
from pcg.plan.plan import save_plan
from search.cost.cost import SGD
from search.report.describe import pipeline_text
from substitutions.audit.locate import of_module
from substitutions.rules.store import load_library
from unity.audit import app
from unity.support.planners import planner_of

pytestmark = pytest.mark.benchmark


MODELS = ("mlp", "dlrm", "xdl", "candle-uno", "bert-large", "resnext50", "inception-v3")


@pytest.mark.parametrize("model", MODELS)
def test_large_plans_follow(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = load_machine("summit").with_nodes(32)
    captured = capture_model(model, None, machine.devices)
    library, path = load_library(), tmp_path / "p.json"
    planner = planner_of("joint", machine, library, 600.0, SGD, None)
    plan = planner.plan(model, captured.graph).plan
    save_plan(of_module(plan, captured, library.rules), path)
    start = perf_counter()
    result = CliRunner().invoke(app, [str(path), "--json"])
    seconds = perf_counter() - start
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    with capsys.disabled():
        print(
            f"\n{model}, {pipeline_text(plan) or 'no pipeline'}: {content['steps']:,} steps,"
            f" {path.stat().st_size:,} bytes, audited in {seconds:.1f} s (replay"
            f" {content['replay_seconds']:.1f} s, proofs {content['proof_seconds']:.1f} s, the rest"
            " reads files and captures the model)"
        )
