"""The output of `unity run`: the rank that prints, progress, log and result."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.plans.run_plans import MODEL, PARALLEL, refused, write_plan, write_plan_of

from runtime.execute.precision import LossScale
from runtime.job.job import AgreedError
from runtime.world.collectives import World
from runtime.world.network import Network
from unity.run import app
from unity.support.cli import run_app


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_of_torchrun_without_gpus(tmp_path, capsys, monkeypatch, rank):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    path = write_plan(tmp_path, 2)
    path.write_text(path.read_text().replace('"cpu"', '"gpu"'))
    for name, value in {"RANK": rank, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    with pytest.raises(SystemExit) as caught:
        run_app(app, "run", [str(path)])
    assert caught.value.code == 2
    line = "unity: error: machine: the plan needs 2 GPUs, this computer has 0\n"
    assert capsys.readouterr().err == (line if rank == 0 else "")


@pytest.mark.parametrize("rank", [0, 1])
def test_the_wrong_number_of_processes(tmp_path, capsys, monkeypatch, rank):
    """All ranks end, and one of them prints why."""
    path = write_plan(tmp_path, 2)
    variables = {"RANK": rank, "WORLD_SIZE": 3, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(SystemExit) as caught:
        run_app(app, "run", [str(path)])
    expected = f"unity: error: {path}: expected 2 processes, one a device, got 3\n"
    assert caught.value.code == 2
    assert capsys.readouterr().err == (expected if rank == 0 else "")


class Unconnected(Network):
    """A network in which a process has met no other."""

    def group(self, ranks):
        return None


@pytest.fixture
def second_rank(monkeypatch):
    """Make this process the second one that torchrun started, on this or on another computer."""

    def become(local):
        variables = {"RANK": 1, "LOCAL_RANK": local, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

        @contextmanager
        def opened(kind, timeout):
            yield World(1, 2, network=Unconnected())

        monkeypatch.setattr("runtime.train.worker.open_world", opened)

    return become


def test_rank_that_is_out_of_memory_reports_it(tmp_path, capsys, second_rank):
    large = PARALLEL.replace("16", "1000000000000").format(n=2, function="relu")
    plan = write_plan_of(tmp_path, 2, MODEL.replace("16", "1000000000000"), large)
    second_rank(1)
    status, line = refused(capsys, plan)
    assert status == 2
    assert line.startswith(f"unity: error: {plan}: cpu: rank 1 is out of memory: ")


@pytest.mark.parametrize("local", [0, 1])
def test_file_missing_on_a_computer_is_reported_by_its_first_process(
    tmp_path, capsys, second_rank, local
):
    second_rank(local)
    path = tmp_path / "plan.json"
    with pytest.raises(SystemExit) as caught:
        run_app(app, "run", [str(path)])
    assert caught.value.code == 2
    expected = f"unity: error: {path}: no such file (expected a JSON file)\n"
    assert capsys.readouterr().err == (expected if local == 0 else "")


def test_error_of_all_ranks_is_reported_by_the_first_rank_alone(
    tmp_path, capsys, second_rank, monkeypatch
):
    def train(*given):
        raise AgreedError("folder", "has checkpoints already")

    second_rank(0)
    monkeypatch.setattr("runtime.train.worker.train", train)
    with pytest.raises(SystemExit) as caught:
        run_app(app, "run", [str(write_plan(tmp_path, 2))])
    assert caught.value.code == 2
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_json", [False, True])
def test_a_check_where_no_steps_are_left(tmp_path, capsys, is_json):
    given = [str(write_plan(tmp_path, 1)), "--check", "--checkpoint", str(tmp_path / "kept")]
    for more in ([], ["--resume", *(["--json"] if is_json else [])]):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            run_app(app, "run", [*given, *more])
        assert caught.value.code == 0
    out = capsys.readouterr().out
    if is_json:
        told = json.loads(out)["check"]
        assert told["passes"]
        assert [(c["kind"], c["name"]) for c in told["comparisons"]] == [
            ("weight", "w1"),
            ("weight", "w2"),
        ]
    else:
        assert "no steps were left, so only weights are compared" in out
        assert "agrees with one process" in out


def lines_of_progress(text):
    return [line for line in text.splitlines() if line.startswith("unity: step ")]


def test_progress_off_a_terminal_is_printed_for_some_steps(tmp_path, capsys):
    plan, log = write_plan(tmp_path, 1), tmp_path / "log"
    for more in ("--precision=fp16", "--json"):
        with pytest.raises(SystemExit) as caught:
            run_app(app, "run", [str(plan), "--steps", "25", "--losses", str(log), more])
        assert caught.value.code == 0
        lines = lines_of_progress(capsys.readouterr().err)
        if more == "--json":
            assert lines == []
            continue
        told = [re.match(r"unity: step (\d+) of 25: loss \S+, \S+ s \((.*)\)", x) for x in lines]
        assert [int(m[1]) for m in told if m] == [3, 5, 8, 10, 13, 15, 18, 20, 23, 25]
        assert {m[2] for m in told if m} == {"0.5 s predicted"}
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    assert [step["number"] for step in steps] == [*range(1, 26)] * 2
    assert {step["left_out"] for step in steps} == {0}


def test_updates_that_were_left_out_are_counted(tmp_path, capsys, monkeypatch):
    """A scale of the loss beyond the range of float32 makes all gradients infinite."""
    monkeypatch.setattr("runtime.execute.executor.LossScale", lambda: LossScale(2.0**127))
    plan, log = write_plan(tmp_path, 1), tmp_path / "log"
    with pytest.raises(SystemExit) as caught:
        run_app(app, "run", [str(plan), "--precision", "fp16", "--losses", str(log)])
    assert caught.value.code == 0
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    assert [step["number"] for step in steps] == [1, 2, 3, 4, 5]
    count = sum(step["left_out"] for step in steps)
    assert count > 100
    assert f"{count} updates were left out" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["open", "write"])
def test_a_log_that_cannot_be_written(tmp_path, capsys, where):
    path, problem = {
        "open": (tmp_path / "none" / "log", "No such file or directory"),
        "write": (Path("/dev/full"), "No space left on device"),
    }[where]
    expected = f"unity: error: {path}: cannot write: {problem}"
    plan = write_plan(tmp_path, 1)
    assert refused(capsys, plan, "--json", "--losses", path) == (2, expected)


def test_the_log_is_not_blamed_for_others_errors(tmp_path, monkeypatch):
    def train(*given):
        raise OSError(5, "of something else")

    monkeypatch.setattr("runtime.train.worker.train", train)
    given = [str(write_plan(tmp_path, 1)), "--losses", str(tmp_path / "log")]
    with pytest.raises(OSError, match="of something else"):
        run_app(app, "run", given)
