"""`unity optimize`: its files, its output, and errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.runs.commands import no_worker_is_left, run_here
from typer.testing import CliRunner, Result

from pcg.graph.graph import Graph
from pcg.plan.plan import load_plan
from runtime.program.lower import Lowering
from search.cost.planned import Planned
from search.cost.progress import Status
from search.pipeline.beside import WithPipelines
from substitutions.rules.store import default_path
from unity.__main__ import main
from unity.commands.planning import progress_line
from unity.optimize import app
from unity.simulate import app as simulator
from unity.support.origin import check_origin

MACHINES = ROOT / "pcg" / "machines"

runner = CliRunner()


def optimize(*arguments: str) -> Result:
    return runner.invoke(app, list(arguments), catch_exceptions=True)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """The output for a plan, and its file."""
    out = tmp_path_factory.mktemp("shown") / "plan.json"
    return optimize("mlp-tiny", "--devices", "2", "-o", str(out)), out


def test_optimize_writes_a_plan_and_shows_it(shown: tuple[Result, Path]) -> None:
    result, out = shown
    assert result.exit_code == 0, result.output
    plan = load_plan(out)
    assert plan.machine.devices == 2
    assert plan.derivation
    assert "Rules applied" in result.output
    assert "(x, w1)" in result.output


def test_json_has_the_figures(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = optimize("mlp-tiny", "--devices", "2", "-o", str(out), "--json")
    content = json.loads(result.stdout)
    assert content["devices"] == 2
    assert content["speedup"] >= 1
    assert content["predicted_seconds"] <= content["data_parallel_seconds"]
    assert content["peak_memory_bytes"] > 0
    assert content["stop_reason"] == "exhausted"
    assert content["cache_hits"] > 0
    assert content["rewrites_left"] >= 0
    assert content["simulated_plans"] > 0
    assert 0 < sum(content["seconds_by_phase"].values()) <= content["search_seconds"]
    steps = [plan["step_seconds"] for plan in content["improvements"]]
    assert steps == sorted({*steps}, reverse=True)
    assert steps[-1] == pytest.approx(content["predicted_seconds"], rel=1e-9)
    times = [0.0, *(plan["after_seconds"] for plan in content["improvements"])]
    assert times == sorted(times)
    assert times[-1] <= content["search_seconds"]
    assert result.stderr == "", "where no terminal is, nothing but the plan is printed"


def test_an_interrupt_before_a_plan_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unity.support.processes.STOPS", [signal.SIGUSR1])
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL

    def interrupted(self: WithPipelines, name: str, graph: Graph) -> Planned:
        assert signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL, "it would end the tests"
        signal.raise_signal(signal.SIGUSR1)
        raise AssertionError

    monkeypatch.setattr(WithPipelines, "plan", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["optimize", "mlp-tiny", "--devices", "2"])
    assert stop.value.code == 130
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "unity: mlp-tiny: interrupted before a plan was found\n")


@pytest.mark.soak
def test_a_pipeline_is_planned_and_run(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    arguments = ["mlp-mnist", "--devices", "2", "--planner", "pipeline", "-o", str(out)]
    content = json.loads(optimize(*arguments, "--json").stdout)
    pipeline = load_plan(out).pipeline
    assert pipeline is not None
    assert pipeline.schedule == "1f1b"
    assert content["pipeline"].startswith("pipeline ")
    assert content["pipeline"].endswith(f"x {pipeline.micro_batches} micro-batches")
    done = run_here(out, "--steps", "2", "--check")
    assert done.status == 0, done.err
    assert "check: agrees with one process" in done.out
    assert no_worker_is_left()


def test_the_table_says_that_a_plan_is_a_pipeline(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    shown = optimize("mlp-mnist", "--devices", "2", "--planner", "pipeline-2bw", "-o", str(out))
    pipeline = load_plan(out).pipeline
    assert pipeline is not None
    assert pipeline.schedule == "2bw"
    words = f"x {pipeline.micro_batches} micro-batches, two versions of weights"
    assert words in " ".join(shown.output.split())


@pytest.mark.parametrize("option", [("--allow", "data"), ("--mode", "algebra")])
def test_a_pipeline_takes_no_options_of_other_planners(
    option: tuple[str, str], tmp_path: Path
) -> None:
    out = str(tmp_path / "plan.json")
    result = optimize("mlp-mnist", "--planner", "pipeline", *option, "-o", out)
    assert str(result.exception) == f"{option[0]}: does not go with --planner pipeline"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--planner", "zero", "--threshold", "1.5"),
            "--threshold: does not go with --planner zero",
        ),
        (("--planner", "zero", "--reach", "2"), "--reach: does not go with --planner zero"),
        (("--planner", "zero", "--mode", "algebra"), "--mode: does not go with --planner zero"),
        (
            ("--planner", "expert", "--mode", "parallel"),
            "--mode: does not go with --planner expert",
        ),
    ],
)
def test_option_that_would_be_ignored_is_refused(
    arguments: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    result = optimize("mlp-tiny", *arguments, "-o", str(tmp_path / "plan.json"))
    assert str(result.exception).startswith(says)
    assert not list(tmp_path.iterdir())


def test_optimize_lists_the_recomputed_operators(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    options = ("mlp-mnist", "--devices", "2", "--planner", "data-parallel", "-o", str(out))
    said = optimize(*options, "--recompute", "full").output
    plan = load_plan(out)
    names = {node.name for node in plan.recompute}
    (line,) = (line for line in said.splitlines() if line.startswith("recomputed in the backward"))
    assert all(name in line for name in names)
    assert names
    content = json.loads(optimize(*options, "--recompute", "full", "--json").stdout)
    assert content["recomputed_operators"] == sum(content["recomputed"].values())
    assert set(content["recomputed"]) == names
    assert optimize(*options, "--recompute", "none").exit_code == 0
    assert not load_plan(out).recompute
    assert optimize(*options, "--recompute", "some").exit_code == 2


def test_an_unknown_planner_is_refused_with_those_there_are(tmp_path: Path) -> None:
    result = optimize("mlp-mnist", "--planner", "gpipe", "-o", str(tmp_path / "plan.json"))
    assert "expected one of joint, data-parallel" in str(result.exception)
    assert "pipeline, pipeline-2bw" in str(result.exception)


def test_a_plan_that_does_not_fit_is_a_negative_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "sys.argv",
        [*["unity", "optimize", "dlrm", "--machine", "summit", "--planner", "data-parallel"]],
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    assert "does not fit summit" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


MODEL = """\
import torch
from torch import nn

class Ranked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return torch.topk(torch.relu(self.layer(x)).flatten(), 4).values.square().mean()

def make_model():
    return Ranked(), (torch.zeros(8, 16),)
"""


def test_model_from_a_file_is_planned_with_opaque_functions(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    name, out = f"{tmp_path}/mine.py:make_model", tmp_path / "plan.json"
    result = optimize(name, "--devices", "2", "--budget", "5", "-o", str(out))
    assert result.exit_code == 0, result.output
    assert re.search(
        r"have no equation: aten\.topk\.default \(\d+\.\d\d% of the step\)", result.output
    )
    lowering = Lowering(load_plan(out))  # the file states the function
    assert lowering.plan.model_name == name
    assert any("topk" in str(lowering.program(rank)) for rank in range(2))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("resnet",), "model resnet: unknown, expected FILE.py:FUNCTION or one of mlp, "),
        (("missing.py:make_model",), "missing.py: no such file"),
        (("mlp-tiny", "--machine", "cray"), "no such machine"),
        (("mlp-tiny", "--planner", "taso"), "planner taso: unknown, expected one of joint, "),
        (("mlp-tiny", "--threshold", "0.9"), "threshold"),
        (("mlp-tiny", "--machine", "missing.toml"), "missing.toml: no such file"),
        (("mlp-tiny", "--nodes", "0"), "expected 1 node or more"),
        (("mlp-tiny", "--devices", "9"), "expected 1 to 4 devices"),
        (("mlp-tiny", "--nodes", "-3"), "expected 1 node or more, got -3"),
        (("mlp-tiny", "--nodes", "1000000000"), "expected at most 1048576 devices"),
        (("mlp-tiny", "--devices", "0"), "expected 1 to 4 devices, got 0"),
        (("mlp-tiny", "--devices", "1000000000"), "expected 1 to 4 devices, got 1000000000"),
        (("mlp-tiny", "--batch", "0"), "batch: expected 1 or more"),
        (("mlp-tiny", "--batch", "-8"), "batch: expected 1 or more, got -8"),
        (("mlp-tiny", "--batch", "4" + "0" * 20), "batch: expected at most 1073741824"),
        (("mlp-tiny", "--batch", "7"), "batch: 7 shares no factor with 4 devices"),
        (("mlp-tiny", "--machine", "none.toml"), "at level[0].count: expected greater than or"),
        (("mlp-tiny", "--rules", "missing.json"), "missing.json: no such file"),
        (("mlp-tiny", "-o", "/dev/null/plan.json"), "/dev/null: cannot be made a folder"),
        (("mlp-tiny", "-o", "."), ".: is a folder, expected a file to write"),
        (("mlp-tiny", "--trace", "."), ".: is a folder, expected a file to write"),
        (("mlp-tiny", "--reach", "-1"), "optimize: invalid value for '--reach'"),
        (("mlp-tiny", "--budget", "nan"), "optimize: invalid value for '--budget'"),
        (("mlp-tiny", "--budget", "x"), "optimize: invalid value for '--budget'"),
        (("mlp-tiny", "--budget", "-1"), "optimize: invalid value for '--budget'"),
        (("mlp-tiny", "--threshold", "nan"), "optimize: invalid value for '--threshold'"),
        (("mlp-tiny", "--batch", "x"), "optimize: invalid value for '--batch'"),
        (("mlp-tiny", "--nodes", "100000"), "local: expected at most 65536 devices to plan for"),
        (("--devices", "2"), "optimize: missing argument"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: tuple[str, ...],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    none = tmp_path / "none.toml"
    none.write_text((MACHINES / "local.toml").read_text("utf-8").replace("count = 4", "count = 0"))
    monkeypatch.setattr("sys.argv", ["unity", "optimize", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [none]


def test_a_batch_that_is_left_whole_may_be_of_any_size(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    allowed = ("--devices", "2", "--batch", "7", "--allow", "model,reduction")
    result = optimize("mlp-tiny", *allowed, "-o", str(out))
    assert result.exit_code == 0, result.output


def test_a_wrong_library_leaves_the_old_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules, plan = tmp_path / "rules.json", tmp_path / "plan.json"
    text = default_path().read_text("utf-8").replace('"operators": "', '"operators": "0', 1)
    rules.write_text(text, "utf-8")
    plan.write_text("the old plan", "utf-8")
    arguments = ["mlp-tiny", "--rules", str(rules), "-o", str(plan)]
    monkeypatch.setattr("sys.argv", ["unity", "optimize", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "other operator definitions" in capsys.readouterr().err
    assert plan.read_text("utf-8") == "the old plan"


def test_without_a_library_there_is_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "generated_rules" / "rules.json"
    monkeypatch.setattr("substitutions.rules.store.default_path", lambda: missing)
    monkeypatch.setattr("sys.argv", ["unity", "optimize", "mlp-tiny"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "rules.json: no such file" in capsys.readouterr().err


def test_profile_changes_the_prediction(tmp_path: Path) -> None:
    later = [{"size": 1e6, "seconds": 2.0, "spread": 0.0}]
    slow = [{"size": size, "seconds": 1.0, "spread": 0.0} for size in (1e3, 1e6)]
    content = {
        "schema_version": 1,
        "machine": "local",
        "device": "slow",
        "operators": [{"kind": "contraction", "dtype": "float32", "points": slow}],
        "links": [{"level": "node", "of": "all_reduce", "devices": 2, "points": slow[:1] + later}],
    }
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(content))
    arguments = ["mlp-mnist", "--devices", "2", "--planner", "data-parallel", "--json"]
    result = optimize(*arguments, "-o", str(tmp_path / "plan.json"), "--profile", str(profile))
    # Two products forward, three backward.
    assert json.loads(result.stdout)["predicted_seconds"] > 5
    # Measurements make no other machine: the plan runs, and is simulated with the same price.
    check_origin(load_plan(tmp_path / "plan.json"), "plan.json")
    given = [str(tmp_path / "plan.json"), "--profile", str(profile), "--json"]
    simulated = json.loads(runner.invoke(simulator, given).stdout)
    assert simulated["step_seconds"] == json.loads(result.stdout)["predicted_seconds"]


def test_the_line_of_progress() -> None:
    assert progress_line(Status("rules", 0, None)) == "split, rules: 0 plans priced"
    line = progress_line(Status("all strategies", 1234, 0.0248, "map"))
    assert line == "map, all strategies: 1,234 plans priced, best 24.8 ms a step"
    line = progress_line(Status("all strategies", 1234, 0.0248, "refine", 0.0186))
    assert line.endswith("best 24.8 ms a step, none here below 18.6 ms (25% less)")


PLAN = """
import sys
from pcg.machine import load_machine
from pcg.plan.plan import save_plan
from pcg.plan.text import parse_graph
from substitutions.rules.store import load_library
from search.cost.cost import SGD
from unity.support.planners import planner_of

machine, library = load_machine("local").with_devices(2), load_library()
text = "x = input[64, 784]\\nw = weight[784, 256]\\nreturn mean_loss(relu(matmul(x, w)))"
graph = parse_graph(text)
for planner in ("joint", "pipeline"):
    search = planner_of(planner, machine, library, 600.0, SGD, None)
    save_plan(search.plan("layers", graph).plan, f"{sys.argv[1]}/{planner}.json")
"""


def test_the_same_search_writes_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, and in one that orders sets of strings differently."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.setattr("sys.argv", ["plan", str(here)])
    exec(PLAN, {})
    # Another hash seed than that of this process, if one is given.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = os.environ | {"PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", PLAN, str(there)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    for planner in ("joint", "pipeline"):
        name = f"{planner}.json"
        assert (here / name).read_bytes() == (there / name).read_bytes(), planner


@pytest.mark.soak  # a search on 24 devices
def test_a_joint_plan_that_is_a_pipeline_has_a_timeline(tmp_path: Path) -> None:
    out, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    arguments = ["mlp", "--machine", "summit", "--nodes", "4", "-o", str(out)]
    result = optimize(*arguments, "--trace", str(trace), "--json")
    assert result.exit_code == 0, result.output
    plan = load_plan(out)
    assert plan.pipeline is not None
    ends = [e["ts"] + e["dur"] for e in json.loads(trace.read_text())["traceEvents"] if "ts" in e]
    assert max(ends) == pytest.approx(json.loads(result.stdout)["predicted_seconds"] * 1e6)
