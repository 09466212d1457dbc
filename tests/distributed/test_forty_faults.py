"""Forty kinds of faults. Each ends in one line that names the right rank, with the status that
tells whether to try again. It leaves no process and no file, and loses nothing: the resumed run has
the losses of a run without faults.

The few that run with every change are in tests/distributed/test_faults.py. The choice of the rank
to blame is tested in tests/runtime/world/test_blame.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest
from support.graphs.two_layers import BY_ROWS, MODEL
from support.runs.commands import run_here
from support.runs.disturbed import Disturbed, RunFolder, same_course
from support.runs.faulty import (
    TORCHRUN,
    Fault,
    Scene,
    after,
    to_all,
    to_launcher,
    to_server,
    to_worker,
)

from pcg.plan.plan import save_plan
from pcg.plan.text import parse_graph
from runtime.checkpoints.lock import NAME

pytestmark = [pytest.mark.distributed, pytest.mark.soak]

KILL, TERM, HUP, INT, STOP = (
    getattr(signal, f"SIG{name}") for name in ("KILL", "TERM", "HUP", "INT", "STOP")
)
AGAIN, UNUSABLE, NOT_FINITE = 75, 2, 3
SUDDEN = r"worker {} ended suddenly, by {}"
STOPPED = r"stopped by {} after step \d+, checkpoint .*/step-\d+"
ONE_RESTART = ("--max-restarts", "1")

# The last report of a rank may be a second old, and short runs make all their steps in that time.
FAULTS = {
    "rank 0 killed": Fault(AGAIN, SUDDEN.format(0, "signal SIGKILL"), act=to_worker(0, KILL)),
    "rank 1 killed": Fault(AGAIN, SUDDEN.format(1, "signal SIGKILL"), act=to_worker(1, KILL)),
    "rank 1 killed in its data": Fault(
        AGAIN, SUDDEN.format(1, "signal SIGKILL"), data=("killed", 1)
    ),
    "rank 0 killed, restarted": Fault(
        0,
        act=to_worker(0, KILL),
        options=ONE_RESTART,
        says=SUDDEN.format(0, "signal SIGKILL; restart 1 of 1"),
    ),
    "rank 1 killed, restarted": Fault(
        0,
        act=to_worker(1, KILL),
        options=ONE_RESTART,
        says=SUDDEN.format(1, "signal SIGKILL; restart 1 of 1"),
    ),
    "rank 1 killed in a checkpoint": Fault(
        AGAIN, SUDDEN.format(1, "signal SIGKILL"), data=("writing", 1)
    ),
    "rank 0 killed in a checkpoint, restarted": Fault(
        0, data=("writing", 0), once=True, options=ONE_RESTART, says="restart 1 of 1"
    ),
    "rank 1 crashed": Fault(AGAIN, SUDDEN.format(1, "signal SIGSEGV"), data=("crashed", 1)),
    "rank 1 exits": Fault(AGAIN, SUDDEN.format(1, "status 7"), data=("gone", 1)),
    "rank 0 exits, restarted": Fault(
        0, data=("gone", 0), once=True, options=ONE_RESTART, says="status 7; restart 1 of 1"
    ),
    "rank 0 told to stop": Fault(143, STOPPED.format("SIGTERM"), act=to_worker(0, TERM)),
    "rank 1 told to stop": Fault(143, STOPPED.format("SIGTERM"), act=to_worker(1, TERM)),
    "rank 1 hung up on": Fault(129, STOPPED.format("SIGHUP"), act=to_worker(1, HUP)),
    "launcher told to stop": Fault(143, STOPPED.format("SIGTERM"), act=to_launcher(TERM)),
    "launcher hung up on": Fault(129, STOPPED.format("SIGHUP"), act=to_launcher(HUP)),
    "launcher interrupted": Fault(130, STOPPED.format("SIGINT"), act=to_launcher(INT)),
    "all told to stop": Fault(143, STOPPED.format("SIGTERM"), act=to_all(TERM)),
    "all hung up on": Fault(129, STOPPED.format("SIGHUP"), act=to_all(HUP)),
    "all interrupted": Fault(130, STOPPED.format("SIGINT"), act=to_all(INT)),
    "launcher killed": Fault(-KILL, act=to_launcher(KILL)),
    "server of workers killed": Fault(AGAIN, r"worker \d ended suddenly", act=to_server),
    "torchrun told to stop": Fault(
        1, STOPPED.format("SIGTERM"), act=to_launcher(TERM), launcher=TORCHRUN
    ),
    "torchrun killed": Fault(
        -KILL, STOPPED.format("SIGTERM"), act=to_launcher(KILL), launcher=TORCHRUN
    ),
    "rank 1 of torchrun killed": Fault(
        1,
        "rank 1 is silent (in step|before the first step)",
        act=to_worker(1, KILL),
        launcher=TORCHRUN,
    ),
    "rank 1 of torchrun killed, restarted": Fault(
        0,
        "rank 1 is silent (in step|before the first step)",
        act=to_worker(1, KILL),
        launcher=(*TORCHRUN, *ONE_RESTART),
    ),
    "rank 1 of torchrun told to stop": Fault(
        1, STOPPED.format("SIGTERM"), act=to_worker(1, TERM), launcher=TORCHRUN
    ),
    "rank 0 of torchrun stops": Fault(
        1,
        "rank 0 is silent (in step|before the first step)",
        act=to_worker(0, STOP),
        launcher=TORCHRUN,
    ),
    "data of rank 1 of torchrun hang": Fault(
        1,
        "rank 1 hangs in step 2[34], reading its data",
        data=("hangs", 1),
        launcher=TORCHRUN,
    ),
    "data of rank 1 of torchrun are bad": Fault(
        1,
        r"rank 1: step 2[34]: .* raised ValueError",
        data=("raises", 1),
        launcher=TORCHRUN,
    ),
    "rank 0 stops": Fault(
        AGAIN, "rank 0 is silent (in step|before the first step)", act=to_worker(0, STOP)
    ),
    "rank 1 stops": Fault(
        AGAIN, "rank 1 is silent (in step|before the first step)", act=to_worker(1, STOP)
    ),
    "data of rank 0 hang": Fault(
        AGAIN, "rank 0 hangs in step 2[34], reading its data", data=("hangs", 0)
    ),
    "data of rank 1 hang": Fault(
        AGAIN, "rank 1 hangs in step 2[34], reading its data", data=("hangs", 1)
    ),
    "data of rank 1 hang and hold all threads": Fault(
        AGAIN, "rank 1 is silent (in step|before the first step)", data=("holds", 1)
    ),
    "data of rank 1 raise": Fault(
        UNUSABLE,
        r"rank 1: step 2[34]: .*: sample \d+ raised ValueError: no such file on this host",
        data=("raises", 1),
    ),
    "data of rank 0 have another shape": Fault(
        UNUSABLE, r"rank 0: step 2[34]: .*index \d+ .*expected shape \[8\]", data=("shape", 0)
    ),
    "data of rank 1 are complex": Fault(
        UNUSABLE, r"rank 1: step 2[34]: .*expected real numbers", data=("complex", 1)
    ),
    "data of rank 1 are text": Fault(
        UNUSABLE, r"rank 1: step 2[34]: .*expected a tensor, got str", data=("text", 1)
    ),
    "data of rank 1 are missing": Fault(
        UNUSABLE, r"rank 1: step 2[34]: .*no input x in a sample", data=("none", 1)
    ),
    "data of rank 1 are no numbers": Fault(
        NOT_FINITE,
        r"trained, but loss is nan in step 2[34] \(input x of rank 1\)",
        data=("nan", 1),
        says=r"warning: loss is nan in step 2[34] \(input x of rank 1\)",
    ),
    "data of rank 0 are infinite, which stops": Fault(
        NOT_FINITE,
        r"training: loss is \w+ in step 2[34] \(input x of rank 0\); last good .*step-00000020",
        data=("inf", 0),
        options=("--stop-non-finite",),
    ),
    "data of rank 1 are huge": Fault(
        NOT_FINITE, r"not finite|loss is", data=("huge", 1), options=("--stop-non-finite",)
    ),
    "rank 1 has no memory": Fault(UNUSABLE, "rank 1 is out of memory", data=("short", 1)),
    "rank 0 may take no more memory": Fault(
        UNUSABLE, "rank 0.*(is out of memory|allocate)", data=("limited", 0)
    ),
    "data of rank 1 end the process": Fault(AGAIN, "rank 1|worker 1", data=("leaves", 1)),
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory, plan_of):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    graph = parse_graph(BY_ROWS.format(n=2))
    save_plan(plan_of(parse_graph(MODEL), graph, 2, {}), path)
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory, plan):
    """A run without faults."""
    scene = Scene(tmp_path_factory.mktemp("alone"), plan)
    run = RunFolder(scene.folder / "run")
    ended = run_here(*run.arguments(plan, *scene.given))
    assert ended.status == 0, ended.err
    return run


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary files with a short name, because sockets need one."""
    folder = Path(mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    rmtree(folder)


@pytest.mark.parametrize("name", FAULTS)
def test_run_survives_or_reports_the_fault(name, plan, alone, temporary, tmp_path):
    scene, fault = Scene(tmp_path, plan), FAULTS[name]
    scene.demand(fault, scene.start(fault), alone, temporary)


@pytest.fixture
def small_disk(tmp_path):
    """The folder of checkpoints as a separate disk. The returned function sets its size."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)

    def mount(*options):
        given = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
        if subprocess.run(given, capture_output=True).returncode:
            pytest.skip("no disk can be mounted here")

    yield mount
    subprocess.run(["umount", "-l", str(folder)], capture_output=True)


def after_checkpoint(step, act):
    """A disturbance once the checkpoint of a step is there, which load can delay."""

    def acting(run):
        run.wait_for_checkpoint(step)
        act(run)

    return acting


def filled(scene):
    """Leave no room in the folder of checkpoints."""
    path = scene.folder / "run" / "checkpoints" / "fill"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"0" * 4096)


def test_a_disk_that_becomes_full(plan, alone, tmp_path, small_disk):
    """Checkpoints are left out with a warning. The loss of the last one is reported."""
    small_disk("size=1m")
    scene = Scene(tmp_path, plan)
    run = scene.start(Fault(AGAIN, act=after_checkpoint(10, lambda run: filled(scene))))
    status, _, err = run.finish()
    assert status == AGAIN, err
    (error,) = [x for x in err.splitlines() if x.startswith("unity: error: ")]
    line = "No space left on device.*; what was trained up to step 60 is lost; last good checkpoint"
    assert re.search(line, error)
    assert "warning: no checkpoint: " in err
    (tmp_path / "run" / "checkpoints" / "fill").unlink()
    again = run_here(*run.arguments(plan, *scene.given, "--resume"))
    assert again.status == 0, again.err
    same_course(run, alone)


def test_a_disk_that_is_full_at_first(plan, tmp_path, small_disk):
    small_disk("size=64k")
    scene = Scene(tmp_path, plan)
    filled(scene)
    status, _, err = scene.start(Fault(AGAIN)).finish()
    assert status == AGAIN
    assert "cannot write checkpoints: no space left on device" in err
    assert len([x for x in err.splitlines() if x.startswith("unity: error: ")]) == 1


def test_older_checkpoints_make_room_for_the_last(plan, tmp_path, small_disk):
    small_disk("size=1m")
    scene = Scene(tmp_path, plan)
    run = scene.start(Fault(0, act=after_checkpoint(20, lambda run: filled(scene))))
    status, _, err = run.finish()
    assert status == 0, err
    assert "trying again without older checkpoints" in err
    assert [p.name for p in run.checkpoints.glob("step-*")]


def test_a_folder_that_can_only_be_read(plan, tmp_path, small_disk):
    small_disk("ro")
    status, _, err = Scene(tmp_path, plan).start(Fault(UNUSABLE)).finish()
    assert status == UNUSABLE
    assert "cannot write checkpoints: read-only file system" in err


def test_a_folder_that_becomes_read_only(plan, tmp_path, small_disk):
    small_disk("size=1m")
    folder = tmp_path / "run" / "checkpoints"

    def remount(how):
        subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)

    run = Scene(tmp_path, plan).start(
        Fault(AGAIN, act=after_checkpoint(20, lambda run: remount("ro")))
    )
    status, _, err = run.finish()
    assert status == AGAIN
    assert "Read-only file system" in err
    assert "step-00000020" in err.splitlines()[-1]
    remount("rw")
    again = run_here(*run.arguments(plan, *Scene(tmp_path, plan).given, "--resume"))
    assert again.status == 0, again.err


def test_two_runs_in_a_folder(plan, alone, temporary, tmp_path):
    scene = Scene(tmp_path, plan)
    given = ("--timeout", "300")
    first = scene.start(Fault(0, act=after(5, lambda run: None), options=given, is_apart=True))
    assert isinstance(first, Disturbed)
    workers = first.workers()
    for worker in workers:
        os.kill(worker, STOP)
    second = run_here(*first.arguments(plan, *scene.given, "--resume"))
    for worker in workers:
        os.kill(worker, signal.SIGCONT)
    assert second.status == AGAIN
    (error,) = [x for x in second.err.splitlines() if x.startswith("unity: error: ")]
    assert "writes there, expected another folder or to wait for its end" in error
    scene.demand(Fault(0), first, alone, temporary)


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_a_lock_that_was_left(plan, tmp_path, host):
    scene = Scene(tmp_path, plan)
    run = scene.start(Fault(AGAIN, act=to_all(KILL)))
    assert run.finish()[0] == -KILL
    path = run.checkpoints / NAME
    assert path.exists()
    if host == "elsewhere":
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"host": "other/1/2"}))
    again = run_here(*run.arguments(plan, *scene.given, "--resume"))
    if host == "here":
        assert again.status == 0, again.err
    else:
        assert again.status == AGAIN
        said = f"on other writes there, another computer's; if it has ended, remove {path}"
        assert said in again.err
