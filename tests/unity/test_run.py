"""`unity run` on the command line: processes, exit status, and one line for each error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
from support.paths import ROOT
from support.plans.by_hand import make_plan
from support.plans.run_plans import MODEL, PARALLEL, refused, write_plan, write_plan_of
from support.runs.commands import no_worker_is_left, run_here
from support.runs.disturbed import MARK, marked

from pcg.graph.opaque import TensorType, opaque
from pcg.machine import load_machine
from pcg.models import build_model
from pcg.plan.plan import save_plan
from pcg.plan.text import parse_graph
from search.cost.cost import SGD
from substitutions.rules.store import load_library
from unity.run import app
from unity.support.cli import run_app
from unity.support.planners import planner_of

TOP = opaque(
    "aten.topk.default(x0, 4)",
    [TensorType((8, 16), "float32")],
    [TensorType((8, 4), "float32"), TensorType((8, 4), "int64")],
)
RANKED = f"""
{TOP.declaration}
x = input[8, 12]
w1 = weight[12, 16]
w2 = weight[4, 8]
y = matmul({TOP.name}(matmul(x, w1)), w2)
return mean_loss(multiply(y, y)), y
"""

CUT_AROUND = f"""
{TOP.declaration}
x = input[8, 12]
w1 = weight[12, 16]
w2 = weight[4, 8]
h = combine(matmul(partition(x, dim=0, degree=2), replicate(w1, degree=2)), dim=0, degree=2)
best = {TOP.name}(replicate(h, degree=2))
y = combine(matmul(best, partition(w2, dim=1, degree=2)), dim=1, degree=2)
return mean_loss(multiply(y, y)), y
"""


def started(*arguments, mark=None, env=()):
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {MARK: mark or "-"} | dict(env),
        start_new_session=True,
    )


def finished(*arguments, **options):
    process = started(*arguments, **options)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def gone(mark, within=10.0):
    end = time.monotonic() + within
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.1)
    return not marked(mark)


@pytest.fixture
def short_folder():
    """A folder with a short name for the temporary files that a killed process leaves: sockets need
    short names."""
    with TemporaryDirectory() as folder:
        yield folder


@pytest.mark.distributed
def test_four_processes_agree_with_one_process(tmp_path):
    run = run_here(write_plan(tmp_path, 4), "--steps", "3", "--check", "--json")
    assert (run.status, run.err) == (0, "")
    content = json.loads(run.out)
    assert len(content["steps"]) == 3
    assert content["step_seconds"]["predicted"] == 0.5
    assert content["check"]["passes"]
    names = {c["name"] for c in content["check"]["comparisons"] if c["kind"] == "weight"}
    assert names == {"w1", "w2"}
    assert no_worker_is_left()


@pytest.mark.distributed
def test_copies_of_an_opaque_operator_agree_with_one_process(tmp_path):
    plan = write_plan_of(tmp_path, 2, RANKED, CUT_AROUND)
    run = run_here(plan, "--steps", "2", "--check", "--json")
    assert (run.status, run.err) == (0, "")
    assert json.loads(run.out)["check"]["passes"]


@pytest.mark.distributed
def test_run_prints_devices_program_times_and_agreement(tmp_path):
    plan = write_plan(tmp_path, 2)
    run = run_here(plan, "--steps", "25", "--check", "--show-program")
    assert run.status == 0
    assert "rank 0 of 2" in run.err
    assert "rank 1 of 2" in run.err
    assert "predicted 0.5, measured" in run.out
    assert "weight w1" in run.out
    assert "agrees with one process" in run.out


@pytest.mark.distributed
def test_a_plan_that_computes_something_else_fails_the_check(tmp_path):
    plan = write_plan(tmp_path, 2, function="gelu")
    run = run_here(plan, "--steps", "1", "--check", "--json")
    assert run.status == 1
    assert not json.loads(run.out)["check"]["passes"]
    assert run.err.startswith(f"unity: error: {plan}: check failed: ")
    assert len(run.err.splitlines()) == 1
    assert no_worker_is_left()


@pytest.mark.distributed
@pytest.mark.parametrize(
    "processes_of_torchrun", [False, pytest.param(True, marks=pytest.mark.soak)]
)
def test_a_trace_of_two_processes(tmp_path, processes_of_torchrun):
    """Operators forward and backward, and the messages between both processes."""
    plan, trace = write_plan(tmp_path, 2), tmp_path / "trace.json"
    given = (plan, "--steps", "2", "--check", "--json", "--trace", trace)
    if processes_of_torchrun:
        start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        status, out, _ = finished(*start, "-m", "unity.run", *given)
    else:
        run = run_here(*given)
        status, out = run.status, run.out
    assert status == 0
    assert json.loads(out)["check"]["passes"]
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    for rank in range(2):
        mine = [e for e in events if e["tid"] // 2 == rank]
        assert {e["cat"] for e in mine} == {"forward", "backward", "update"}
        sent = [e["name"] for e in mine if e["tid"] % 2 == 1]
        assert f"messages with [{1 - rank}]" in sent
        assert "all_reduce of a number, such as the loss" in sent
        assert any("matmul" in e["name"] for e in mine if e["tid"] % 2 == 0)
        assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in mine)


@pytest.mark.distributed
@pytest.mark.parametrize(
    "sign", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.soak)]
)
def test_no_process_outlives_the_command(tmp_path, short_folder, sign):
    mark = uuid4().hex
    plan = write_plan(tmp_path, 2)
    process = started(
        *("-m", "unity.run", plan, "--steps", "10000000", "--json"),
        mark=mark,
        env={"TMPDIR": short_folder},
    )
    end = time.monotonic() + 60
    # The command, the server that forks, Python's resource tracker, and two workers.
    while len(marked(mark)) < 5 and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(sign)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if sign == signal.SIGINT else -sign)
    if sign == signal.SIGINT:  # a killed Python cannot clean up, and its helper says so
        assert err == ""
    assert gone(mark)


@pytest.mark.distributed
@pytest.mark.soak
def test_compiled_processes_agree_with_one_process(tmp_path):
    plan = write_plan(tmp_path, 2)
    given = ("--compile", "--steps", "3", "--check", "--json")
    run = run_here(plan, *given)
    assert (run.status, run.err) == (0, "")
    assert json.loads(run.out)["check"]["passes"]


@pytest.mark.soak  # torch's compiler takes long to import
def test_without_a_compiler(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, "/nowhere/g++"))
    problem = "no C++ compiler works here, expected one such as g++, or CXX to name it"
    expected = 2, f"unity: error: --compile: {problem}"
    given = ("--compile", "--steps", "2", "--json")
    assert refused(capsys, write_plan(tmp_path, 1), *given) == expected


def test_a_plan_for_one_device_runs_here(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as caught:
        run_app(app, "run", [str(write_plan(tmp_path, 1)), "--check", "--json"])
    assert caught.value.code == 0
    assert json.loads(capsys.readouterr().out)["check"]["passes"]


def test_a_missing_plan(tmp_path, capsys):
    path = tmp_path / "plan.json"
    expected = f"unity: error: {path}: no such file (expected a JSON file)"
    assert refused(capsys, path) == (2, expected)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"schema_version": 4', '"schema_version": 9', "at schema_version: expected 4, got 9"),
        ("{", "", "not JSON"),
        ("matmul(x, w1)", "matmul(w1, x)", "model.graph"),
    ],
)
def test_a_broken_plan(tmp_path, capsys, old, new, problem):
    path = write_plan(tmp_path, 2)
    path.write_text(path.read_text().replace(old, new, 1))
    status, line = refused(capsys, path)
    assert status == 2
    assert line.startswith(f"unity: error: {path}: ")
    assert problem in line


def test_a_plan_for_gpus_that_are_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    path = write_plan(tmp_path, 2)
    path.write_text(path.read_text().replace('"cpu"', '"gpu"'))
    expected = "unity: error: machine: the plan needs 2 GPUs, this computer has 0"
    assert refused(capsys, path) == (2, expected)


@pytest.mark.distributed
def test_a_plan_that_takes_more_memory_than_there_is(tmp_path):
    large = PARALLEL.replace("16", "1000000000000").format(n=2, function="relu")
    plan = write_plan_of(tmp_path, 2, MODEL.replace("16", "1000000000000"), large)
    run = run_here(plan)
    assert (run.status, run.out) == (2, "")
    (line,) = run.err.splitlines()
    assert re.match(rf"unity: error: {plan}: cpu: rank [01] is out of memory: .*allocate", line)
    assert no_worker_is_left()


def test_a_plan_of_another_rule_library_or_machine(tmp_path, capsys):
    machine, graph = load_machine("local"), parse_graph(MODEL.replace("8", "16"))
    planner = planner_of("data-parallel", machine, load_library(), 60.0, SGD, None)
    plan = planner.plan("small", graph).plan
    assert plan.derivation
    path = tmp_path / "plan.json"
    save_plan(replace(plan, library_hash="0123456789abcdef"), path)
    expected = "was made with another rule library than the one here, 0123456789abcdef"
    assert refused(capsys, path) == (2, f"unity: error: {path}: {expected}")
    other = plan.machine.model_copy(update={"hash": "0"})
    save_plan(replace(plan, machine=other), path)
    expected = "was made for 4 devices of local, not for 4 of local as it is here"
    assert refused(capsys, path) == (2, f"unity: error: {path}: {expected}")


@pytest.mark.distributed
def test_a_plan_of_another_graph(tmp_path):
    """The zoo has another model of that name than the plan's."""
    plan = make_plan(parse_graph(MODEL), parse_graph(PARALLEL.format(n=2, function="relu")), 2, {})
    path = tmp_path / "plan.json"
    save_plan(replace(plan, model_name="mlp-mnist"), path)
    run = run_here(path, "--check")
    assert (run.status, run.out) == (2, "")
    (line,) = run.err.splitlines()
    begin = f"unity: error: {path}: was made for another graph, model.graph[0]: 'x = input[8, 12]'"
    assert line.startswith(begin)
    assert line.endswith("as mlp-mnist is captured")
    assert no_worker_is_left()


OWN = """
import torch
from torch import nn

class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, {width}, bias=False)

    def forward(self, x):
        return self.layer(x).square().mean()

def make_model():
    return Squares(), (torch.zeros(4, 6),)
"""


def test_a_plan_of_a_file_that_has_changed_since(tmp_path, capsys):
    """The file is run because the caller names it, not because the plan does."""
    file, path = tmp_path / "model.py", tmp_path / "plan.json"
    name = f"{file}:make_model"
    file.write_text(OWN.format(width=8))
    graph = build_model(name, 4, 1)
    save_plan(replace(make_plan(graph, graph, 1, {}), model_name=name), path)
    for check in ("--check", "--model"):
        with pytest.raises(SystemExit) as caught:
            run_app(app, "run", [str(path), check, *([name] if check == "--model" else [])])
        assert caught.value.code == 0
    capsys.readouterr()
    file.write_text(OWN.format(width=16))
    status, line = refused(capsys, path, "--model", name)
    assert status == 2
    assert "weight[6, 8]" in line
    assert line.endswith(f"weight[6, 16]' as {name} is captured")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--check", "--precision", "bf16"), "--precision: bf16 with --check, expected fp64"),
        (("--lr", "nan"), "--lr: expected 0 or more, got nan"),
        (("--decay-steps", "0"), "--decay-steps: expected 1 or more, got 0"),
        (
            ("--schedule", "cosine", "--decay-steps", "0"),
            "--decay-steps: expected 1 or more, got 0",
        ),
    ],
)
def test_options_that_make_no_sense(tmp_path, capsys, arguments, problem):
    status, line = refused(capsys, write_plan(tmp_path, 2), *arguments)
    assert status == 2
    assert line.startswith(f"unity: error: {problem}")
