"""Runs of `unity run` that tests disturb: started, watched through their log, and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from uuid import uuid4

import torch
from support.paths import ROOT
from support.runs.commands import run_here

from runtime.checkpoints.checkpoint import newest_manifest
from runtime.train.plain import state_dict

MARK = "UNITY_TEST_MARK"
PATIENCE = 600.0
"""Seconds that only a run that hangs takes, on however busy a computer."""


@dataclass
class RunFolder:
    """The log and the checkpoints that runs leave in a folder."""

    folder: Path

    def arguments(self, plan: Path, *options: str) -> tuple[str | Path, ...]:
        """The arguments of a run that writes to this folder."""
        self.folder.mkdir(exist_ok=True)
        return plan, "--losses", self.log, "--checkpoint", self.checkpoints, *options

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def steps(self) -> list[tuple[int, float]]:
        """The steps that runs took, with their losses. A repeated step is listed again."""
        if not self.log.exists():
            return []
        lines = self.log.read_text().splitlines()
        # A worker that is killed may leave a part of a line.
        whole = [json.loads(line) for line in lines if line.endswith("}")]
        return [(step["number"], step["loss"]) for step in whole]

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights of the newest checkpoint."""
        return state_dict(newest_manifest(self.checkpoints))

    def wait_for_checkpoint(self, number: int, within: float = PATIENCE) -> None:
        """Wait until the checkpoint of a step has been written, which happens beside training."""
        end = time.monotonic() + within
        while not (self.checkpoints / f"step-{number:08d}").exists():
            assert time.monotonic() < end, f"no checkpoint {number}"
            time.sleep(0.01)

    def wait_for_step(self, number: int, within: float = PATIENCE) -> None:
        """Wait until a step has been logged."""
        end = time.monotonic() + within
        while time.monotonic() < end and not self.has_ended():
            if any(step >= number for step, _ in self.steps()):
                return
            time.sleep(0.01)
        raise AssertionError(f"no step {number}")

    def has_ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return False


class Disturbed(RunFolder):
    """A run with its own process group."""

    def __init__(
        self,
        plan: Path,
        folder: Path,
        options: tuple[str, ...],
        launcher: tuple[str, ...] = (),
    ) -> None:
        """``launcher``: the command that starts the ranks in place of `unity run` itself, such as
        torchrun and its options."""
        super().__init__(folder)
        self.launcher, self.mark = launcher, uuid4().hex
        own = self.arguments(plan, *options)
        self.process = subprocess.Popen(
            [sys.executable, *self.launcher, "-m", "unity.run", *own],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {MARK: self.mark, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            start_new_session=True,
        )

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait_for_step(self, number: int, within: float = PATIENCE) -> None:
        """Wait until a step has been logged. If it never is, the error has the output of the
        run."""
        try:
            super().wait_for_step(number, within)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.finish(5)}") from None

    def workers(self) -> list[int]:
        """The processes that train."""
        return sorted(pid for pid in marked(self.mark) if self._is_worker(pid))

    def _is_worker(self, pid: int) -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            parent = stat.rpartition(")")[2].split()[1]
            command = Path(f"/proc/{parent}/cmdline").read_bytes()
        except OSError:
            return False
        started_by = b"torch.distributed.run" if self.launcher else b"forkserver"
        return started_by in command

    def wait_at_random(self, drawn: Random, steps: int) -> None:
        """Wait for some time, or until some step and a little longer."""
        wanted = max((number for number, _ in self.steps()), default=0)
        if drawn.random() < 0.3:
            time.sleep(drawn.uniform(0.0, 3.0))
        elif wanted + 1 < steps:
            self.wait_for_step(drawn.randint(wanted + 1, steps - 1))
            time.sleep(drawn.uniform(0.0, 0.02))

    def kill_worker(self, which: int, sign: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal to one of the workers, as soon as there are some. Returns whether there
        were any before the run ended."""
        while self.process.poll() is None:
            if workers := self.workers():
                os.kill(workers[which % len(workers)], sign)
                return True
            time.sleep(0.01)
        return False

    def finish(self, within: float = PATIENCE) -> tuple[int, str, str]:
        """Exit status, standard output and standard error."""
        try:
            out, err = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            out, err = self.process.communicate()
        return self.process.returncode, out, err

    def is_gone(self, within: float = 15.0) -> bool:
        """Whether all processes of the run have ended."""
        end = time.monotonic() + within
        while marked(self.mark) and time.monotonic() < end:
            time.sleep(0.1)
        return not marked(self.mark)


def marked(mark: str) -> list[int]:
    """The processes that inherited a mark."""
    steps: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                steps.append(int(entry.name))
        except OSError:
            continue
    return steps


def survives_a_kill(
    plan: Path,
    folder: Path,
    given: tuple[str, ...],
    *,
    steps: int,
    every: int,
    at: int,
    launcher: tuple[str, ...] = (),
) -> bool:
    """Kill a worker after step ``at`` of a run. Check that the run takes the course of an
    undisturbed one, and repeats no more steps than there are between checkpoints. ``given``: the
    options of both runs; ``launcher``: see ``Disturbed``. Returns whether there was a worker to
    kill."""
    own = given if launcher else (*given, "--max-restarts", "1")
    disturbed = Disturbed(plan, folder / "disturbed", own, launcher)
    disturbed.wait_for_step(at)
    is_killed = disturbed.kill_worker(1)
    alone = RunFolder(folder / "alone")
    undisturbed = run_here(*alone.arguments(plan, *given))
    assert undisturbed.status == 0, undisturbed.err
    status, _, err = disturbed.finish()
    assert status == 0, err
    same_course(disturbed, alone)
    assert len(disturbed.steps()) - steps <= every
    assert disturbed.is_gone()
    return is_killed


def same_course(disturbed: RunFolder, alone: RunFolder) -> None:
    """Check that every step of a disturbed run, repeated or not, has the loss of the undisturbed
    run, and that both end with the same weights, all to the last bit."""
    expected = dict(alone.steps())
    taken = disturbed.steps()
    assert {number for number, _ in taken} == expected.keys()
    wrong = [(number, loss, expected[number]) for number, loss in taken if loss != expected[number]]
    assert not wrong
    mine, theirs = disturbed.weights(), alone.weights()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
