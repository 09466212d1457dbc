"""`unity simulate`: its report about a plan, its timeline, and errors."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pcg.errors import InputError
from pcg.plan.plan import load_plan
from pcg.plan.training import Training
from unity.__main__ import main
from unity.commands.simulate import device_list
from unity.optimize import app as optimize_app
from unity.simulate import app

runner = CliRunner()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for four devices, with Adam, and the timeline that optimize wrote."""
    folder = tmp_path_factory.mktemp("plan")
    options = ["--devices", "4", "--optimizer", "adam", "--planner", "data-parallel"]
    options += ["-o", str(folder / "plan.json"), "--trace", str(folder / "trace.json")]
    result = runner.invoke(optimize_app, ["mlp-tiny", *options])
    assert result.exit_code == 0, result.output
    return folder


def simulate(*arguments: str) -> Result:
    return runner.invoke(app, list(arguments), catch_exceptions=True)


def test_simulation_agrees_with_the_estimates_of_the_plan(made: Path) -> None:
    result = simulate(str(made / "plan.json"), "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["step_seconds"] == content["plan_estimate"]["step_seconds"]
    assert content["memory"]["bytes"] == content["plan_estimate"]["peak_memory_bytes"]
    assert sum(content["phases"].values()) == pytest.approx(content["step_seconds"])
    memory = content["memory"]
    assert memory["optimizer"] == 2 * memory["parameters"] > 0
    # Gradients of weights that several devices hold are in buffers, beside the one being computed.
    assert memory["parameters"] <= memory["gradients"] <= 2 * memory["parameters"]
    kinds = ("parameters", "gradients", "optimizer", "activations")
    assert memory["bytes"] == sum(memory[kind] for kind in kinds)
    busiest = content["busiest_device"]
    spent = busiest["computing"] + busiest["communication_exposed"] + busiest["idle"]
    assert spent == pytest.approx(content["step_seconds"])
    assert load_plan(made / "plan.json").training == Training("adam")


def test_number_formats_take_other_time_and_memory(made: Path) -> None:
    """A machine file has no bf16 rate for a CPU, so bf16 saves traffic only."""
    by_format = {}
    for asked, name in (("fp32", "fp32"), ("bfloat16", "bf16"), ("fp64", "fp64")):
        result = simulate(str(made / "plan.json"), "--precision", asked, "--json")
        assert result.exit_code == 0, result.output
        by_format[name] = json.loads(result.stdout)
        assert by_format[name]["precision"] == name
    seconds = [by_format[name]["step_seconds"] for name in ("bf16", "fp32", "fp64")]
    assert seconds == sorted(seconds)
    single, mixed = (by_format[name]["memory"] for name in ("fp32", "bf16"))
    assert mixed["parameters"] == 1.5 * single["parameters"]
    assert mixed["optimizer"] == single["optimizer"]
    # Data, targets and the error of the prediction stay wide. A device has a quarter of the tensors
    # that three relus save for the backward pass, and two bytes of each element are saved.
    hidden = 3 * (512 // 4) * 512
    assert mixed["activations"] <= single["activations"] - 2 * hidden


def test_simulate_prints_a_table(made: Path) -> None:
    result = simulate(str(made / "plan.json"))
    assert result.exit_code == 0, result.output
    assert "communication, hidden" in result.output
    assert "the plan's own estimate" in result.output


def test_the_timeline(made: Path, tmp_path: Path) -> None:
    """Chrome's format: named processes and threads. Entries of one stream never overlap."""
    out = tmp_path / "trace.json"
    result = simulate(str(made / "plan.json"), "--trace", str(out), "--devices", "0-1,3", "--json")
    assert result.exit_code == 0, result.output
    step = json.loads(result.stdout)["step_seconds"]
    entries = json.loads(out.read_text())["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in entries if e["name"] == "thread_name"}
    assert named[0] == "device 0: compute"
    assert {name.split(":")[0] for name in named.values()} == {"device 0", "device 1", "device 3"}
    timed = [entry for entry in entries if entry["ph"] == "X"]
    for thread in named:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in timed if e["tid"] == thread)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(own))
    assert max(e["ts"] + e["dur"] for e in timed) == pytest.approx(step * 1e6)
    assert {e["cat"] for e in timed} >= {"forward", "backward", "update"}
    assert any(e["name"].startswith("matmul") for e in timed)


def test_optimize_writes_the_same_timeline(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    assert simulate(str(made / "plan.json"), "--trace", str(out)).exit_code == 0
    assert json.loads(out.read_text()) == json.loads((made / "trace.json").read_text())


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line with which a command is refused."""
    with pytest.raises(SystemExit) as stop:
        main(["simulate", *arguments])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_another_machine_is_refused(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(made / "plan.json")
    assert "was made for 4 devices of local" in refused(capsys, plan, "--machine", "summit")
    assert "no such machine" in refused(capsys, plan, "--machine", "nowhere")
    assert "cannot be made a folder" in refused(capsys, plan, "--trace", "/dev/null/trace.json")


def test_plan_that_recomputes_no_operator_of_its_own_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((made / "plan.json").read_text())
    content["decisions"]["recompute"] = ["w1"]
    (tmp_path / "plan.json").write_text(json.dumps(content))
    line = refused(capsys, str(tmp_path / "plan.json"))
    assert "decisions.recompute: w1: no computing or parallel operator" in line


def test_recomputed_operators_are_simulated(made: Path, tmp_path: Path) -> None:
    content = json.loads((made / "plan.json").read_text())
    lines = content["decisions"]["graph"]
    relus = [line.split(" = ")[0] for line in lines if " relu(" in line]
    content["decisions"]["recompute"] = relus
    (tmp_path / "plan.json").write_text(json.dumps(content))
    out = tmp_path / "trace.json"
    result = simulate(str(tmp_path / "plan.json"), "--json", "--trace", str(out))
    told = json.loads(result.stdout)
    assert told["recomputed_operators"] == len(relus) > 0
    plain = json.loads(simulate(str(made / "plan.json"), "--json").stdout)
    assert told["busiest_device"]["computing"] > plain["busiest_device"]["computing"]
    assert told["step_seconds"] >= plain["step_seconds"]
    names = [e["name"] for e in json.loads(out.read_text())["traceEvents"]]
    assert any(name.endswith("again") for name in names)


@pytest.fixture(scope="module", params=["pipeline", "pipeline-2bw"])
def pipelined(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline of six devices, and the timeline that optimize wrote."""
    folder = tmp_path_factory.mktemp("pipeline")
    options = ["--planner", request.param, "--trace", str(folder / "trace.json")]
    machine = ["--machine", "summit", "--nodes", "1", "-o", str(folder / "plan.json")]
    result = runner.invoke(optimize_app, ["mlp", *machine, *options, "--json"])
    assert result.exit_code == 0, result.output
    return folder


def test_a_pipeline_agrees_with_the_plan(pipelined: Path) -> None:
    plan = load_plan(pipelined / "plan.json")
    assert plan.pipeline is not None
    assert plan.pipeline.stages > 1
    content = json.loads(simulate(str(pipelined / "plan.json"), "--json").stdout)
    step = content["step_seconds"]
    assert step == plan.estimates.step_seconds
    memory = content["memory"]
    kinds = ("parameters", "gradients", "optimizer", "activations")
    assert memory["bytes"] == sum(memory[kind] for kind in kinds)
    assert memory["bytes"] == plan.estimates.peak_memory_bytes
    assert sum(content["phases"].values()) == pytest.approx(step)
    busiest = content["busiest_device"]
    spent = busiest["computing"] + busiest["communication_exposed"] + busiest["idle"]
    assert spent == pytest.approx(step)
    pipeline = content["pipeline"]
    assert len(pipeline["stages"]) == plan.pipeline.stages
    for stage in pipeline["stages"]:
        each = stage["forward"] + stage["backward"] + stage["weights"]
        turns = pipeline["micro_batches"] * each
        assert turns + stage["once"] + stage["waiting"] == pytest.approx(step)


def test_a_pipeline_prints_its_stages(pipelined: Path) -> None:
    pipeline = load_plan(pipelined / "plan.json").pipeline
    assert pipeline is not None
    shown = simulate(str(pipelined / "plan.json")).output
    assert "waiting for other stages" in shown
    rows = [line for line in shown.splitlines() if f"│ {pipeline.micro_batches} x " in line]
    assert len(rows) == pipeline.stages


def test_the_timeline_of_a_pipeline(pipelined: Path, tmp_path: Path) -> None:
    """Each stream runs one entry at a time, all micro-batches are there, and the entries of a
    stage's device lie within the stage's row."""
    pipeline = load_plan(pipelined / "plan.json").pipeline
    assert pipeline is not None
    out = tmp_path / "trace.json"
    result = simulate(str(pipelined / "plan.json"), "--trace", str(out), "--json")
    step = json.loads(result.stdout)["step_seconds"] * 1e6
    assert out.read_text() == (pipelined / "trace.json").read_text()
    entries = json.loads(out.read_text())["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in entries if e["name"] == "thread_name"}
    timed = [entry for entry in entries if entry["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in timed) == pytest.approx(step)
    for thread in named:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in timed if e["tid"] == thread)
        assert own[0][0] >= 0
        assert all(a[1] <= b[0] + 1e-6 * step for a, b in pairwise(own))
    size = 6 // pipeline.stages
    for stage in range(pipeline.stages):
        (row,) = (t for t, name in named.items() if name.startswith(f"stage {stage}:"))
        blocks = [e for e in timed if e["tid"] == row]
        for way in ("forward", "backward"):
            expected = {f"{way} {batch}" for batch in range(pipeline.micro_batches)}
            assert {e["name"] for e in blocks if e["cat"] == way} == expected
        (device,) = (t for t, name in named.items() if name == f"device {stage * size}: compute")
        mine = [e for e in timed if e["tid"] in (device, device + 1)]
        assert {e["cat"] for e in mine} >= {"forward", "backward", "update"}
        for e in mine:
            last = f"micro-batch {pipeline.micro_batches - 1}"
            if "micro-batch" not in e["name"] or e["name"].endswith(last):
                continue
            batch = e["name"].rsplit(" ", 1)[1]
            assert any(
                b["ts"] - 1e-6 * step <= e["ts"]
                and e["ts"] + e["dur"] <= b["ts"] + b["dur"] + 1e-6 * step
                for b in blocks
                if b["name"] in (f"{e['cat']} {batch}", f"weights {batch}")
            )


def test_a_large_timeline_shows_devices_at_some_micro_batches(
    pipelined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("search.report.trace.MOST_EVENTS", 1)
    pipeline = load_plan(pipelined / "plan.json").pipeline
    assert pipeline is not None
    out = tmp_path / "trace.json"
    assert simulate(str(pipelined / "plan.json"), "--trace", str(out)).exit_code == 0
    names = [e["name"] for e in json.loads(out.read_text())["traceEvents"]]
    batches = {name.rsplit(" ", 1)[1] for name in names if ", micro-batch " in name}
    assert batches == {"0", str(pipeline.micro_batches - 1)}
    assert any(name.startswith("update") for name in names)
    assert f"forward {pipeline.micro_batches // 2}" in names


def test_both_ends_of_a_transfer_between_stages_are_shown(pipelined: Path) -> None:
    entries = json.loads((pipelined / "trace.json").read_text())["traceEvents"]
    names = [e["name"] for e in entries if e["ph"] == "X" and e["cat"] == "forward"]
    sent = {name.removeprefix("send ") for name in names if name.startswith("send ")}
    received = {name.removeprefix("receive ") for name in names if name.startswith("receive ")}
    assert sent
    assert sent == received


def test_device_lists() -> None:
    assert device_list("0-2, 5", 8) == (0, 1, 2, 5)
    for text in ("", "x", "3-1", "0-8", "-1", "1,,2"):
        with pytest.raises(InputError, match="--devices"):
            device_list(text, 8)


def test_an_unknown_optimizer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["optimize", "mlp-tiny", "--optimizer", "lion"])
    assert stop.value.code == 2
    assert "expected one of sgd, momentum, adam" in capsys.readouterr().err


def test_an_unknown_number_format_is_refused(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["optimize", "mlp-tiny"], ["simulate", str(made / "plan.json")]):
        with pytest.raises(SystemExit) as stop:
            main([*command, "--precision", "fp8"])
        assert stop.value.code == 2
        assert "expected one of fp64, fp32, tf32, bf16, fp16" in capsys.readouterr().err
