"""Runs with an injected fault: their data, the fault, and the checks of how the run ends."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from support.runs.commands import no_worker_is_left, run_here, workers_here
from support.runs.disturbed import Disturbed, RunFolder, same_course

DATA = '''
import ctypes, json, os, pathlib, signal, threading, time, torch

HERE = pathlib.Path(__file__).parent

class Samples:
    reads = 0

    def __len__(self):
        return 1200

    def __getitem__(self, index):
        Samples.reads += 1
        if Samples.reads % 6 == 0:
            time.sleep(0.004)
        x = (torch.arange(8) * 0.1 + index * 0.01).sin()
        path = HERE / "fault.json"
        if not path.exists():
            return {"x": x}
        fault = json.loads(path.read_text())
        if fault["rank"] != int(os.environ.get("RANK", "0")) or Samples.reads <= fault["reads"]:
            return {"x": x}
        if fault["kind"] == "writing" and not any(HERE.glob("run/checkpoints/.writing-*")):
            return {"x": x}
        if fault["once"]:
            path.unlink(missing_ok=True)
        return {"x": KINDS[fault["kind"]](x)}

def gone(x):
    os._exit(7)

def killed(x):
    os.kill(os.getpid(), signal.SIGKILL)

def crashed(x):
    ctypes.string_at(0)

def hangs(x):
    threading.Event().wait()

def holds(x):
    """Hangs and lets no thread run."""
    ctypes.PyDLL(None).sleep(100000)

def raises(x):
    raise ValueError("no such file on this host")

def leaves(x):
    raise SystemExit(5)

def short(x):
    raise MemoryError

def limited(x):
    import resource
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used, used))
    return torch.ones(1 << 32)

KINDS = {
    "gone": gone, "killed": killed, "crashed": crashed, "hangs": hangs, "holds": holds,
    "raises": raises, "leaves": leaves, "short": short, "limited": limited,
    "writing": killed,
    "nan": lambda x: x * float("nan"), "inf": lambda x: x * float("inf"),
    "huge": lambda x: x * 1e30, "shape": lambda x: x[:3], "complex": lambda x: x * 1j,
    "none": lambda x: None, "text": lambda x: "text",
}
'''
ROWS_OF_A_RANK = 6
STEPS, EVERY = 60, 10
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
RECIPE = ("--optimizer", "adam", "--lr", "0.01")


@dataclass(frozen=True)
class Fault:
    """A fault of a run. ``data``: the behaviour of the samples of a rank after step ``step``.
    ``act``: the disturbance from outside. ``line``: a pattern of the only error line; empty if
    there is none. ``goes_on``: whether the run ends as if nothing had happened."""

    status: int
    line: str = ""
    data: tuple[str, int] | None = None
    act: Callable[[Any], object] | None = None
    options: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    is_apart: bool = False
    """Whether the run needs processes of its own. Otherwise it runs in this process, which is
    quick."""
    step: int = 23
    once: bool = False
    says: str = ""
    """A pattern of further output."""


def after(step: int, act: Callable[[Any], object]) -> Callable[[Any], object]:
    def acting(run: Any) -> None:
        run.wait_for_step(step)
        act(run)

    return acting


def to_worker(which: int, sign: signal.Signals) -> Callable[[Any], object]:
    return after(23, lambda run: run.kill_worker(which, sign))


def to_launcher(sign: signal.Signals) -> Callable[[Any], object]:
    return _apart(after(23, lambda run: run.process.send_signal(sign)))


def to_all(sign: signal.Signals) -> Callable[[Any], object]:
    return _apart(after(23, lambda run: os.killpg(run.process.pid, sign)))


APART: list[Callable[[Any], object]] = []
"""Disturbances that reach more than the workers of a run."""


def _apart(act: Callable[[Any], object]) -> Callable[[Any], object]:
    APART.append(act)
    return act


@_apart
def to_server(run: Disturbed) -> None:
    """Disturb the process that forks workers."""
    run.wait_for_step(23)
    for worker in run.workers()[:1]:
        stat = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2]
        os.kill(int(stat.split()[1]), signal.SIGKILL)


class RunInProcess(RunFolder):
    """A run in this process, whose workers come from the server of all tests, which is quick. A
    thread disturbs it."""

    launcher = ()

    def __init__(
        self,
        plan: Path,
        folder: Path,
        options: tuple[str, ...],
        act: Callable[[Any], object] | None,
    ) -> None:
        super().__init__(folder)
        self._given, self._ended = self.arguments(plan, *options), False
        self._thread = None if act is None else Thread(target=act, args=(self,), daemon=True)
        if self._thread is not None:
            self._thread.start()

    def has_ended(self) -> bool:
        return self._ended

    def kill_worker(self, which: int, sign: signal.Signals) -> None:
        os.kill(workers_here()[which], sign)

    def finish(self, within: float = 0.0) -> tuple[int, str, str]:
        ended = run_here(*self._given)
        self._ended = True
        if self._thread is not None:
            self._thread.join(10)
        return ended.status, ended.out, ended.err

    def is_gone(self) -> bool:
        return no_worker_is_left()


class Scene:
    """A folder with a plan and data, in which runs meet faults."""

    def __init__(self, folder: Path, plan: Path) -> None:
        self.folder, self.plan = folder, plan
        (folder / "samples.py").write_text(DATA)

    @property
    def given(self) -> tuple[str, ...]:
        data = ("--data", f"{self.folder / 'samples.py'}:Samples")
        return ("--steps", str(STEPS), "--every", str(EVERY), *RECIPE, *data)

    def arm(self, fault: Fault) -> None:
        if fault.data is None:
            return
        kind, rank = fault.data
        reads = fault.step * ROWS_OF_A_RANK
        content = {"kind": kind, "rank": rank, "reads": reads, "once": fault.once}
        (self.folder / "fault.json").write_text(json.dumps(content))

    def start(self, fault: Fault) -> Disturbed | RunInProcess:
        self.arm(fault)
        given = (*self.given, "--timeout", "6", *fault.options)
        if not (fault.is_apart or fault.launcher or fault.act in APART):
            return RunInProcess(self.plan, self.folder / "run", given, fault.act)
        run = Disturbed(self.plan, self.folder / "run", given, fault.launcher)
        if fault.act is not None:
            fault.act(run)
        return run

    def demand(
        self, fault: Fault, run: Disturbed | RunInProcess, alone: RunFolder, temporary: Path
    ) -> None:
        """Check that the run ends as it has to, leaves nothing behind, and loses nothing."""
        status, _, err = run.finish(180)
        print(err)
        own = [line for line in err.splitlines() if line.startswith("unity: ")]
        errors = [line for line in own if line.startswith("unity: error: ")]
        assert status == fault.status, err
        assert len(errors) == bool(fault.line), err
        if fault.line:
            assert re.search(fault.line, errors[0]), err
        assert re.search(fault.says, err), err
        # torchrun prints much of its own.
        assert fault.launcher or "Traceback" not in err, err
        assert run.is_gone(), "a process is left"
        self._demand_clean(run, temporary, killed=status < 0)
        (self.folder / "fault.json").unlink(missing_ok=True)
        if status != 0:
            again = run_here(*run.arguments(self.plan, *self.given, "--resume"))
            assert again.status == 0, again.err
            assert "going on with step" in again.err
        same_course(run, alone)
        assert [number for number, _ in run.steps()] == list(range(1, STEPS + 1))
        self._demand_clean(run, temporary, killed=False)

    def _demand_clean(self, run: RunFolder, temporary: Path, *, killed: bool) -> None:
        hidden = [path.name for path in run.checkpoints.glob(".*")]
        # A run that was killed cannot release the folder. The next run does.
        assert killed or run_by_torchrun(run) or not hidden, hidden
        end = time.monotonic() + 10
        while (left := left_in(temporary)) and time.monotonic() < end:
            time.sleep(0.1)
        assert run_by_torchrun(run) or not left, left


def left_in(temporary: Path) -> list[str]:
    """Our temporary files. torch's compiler keeps a folder for all runs."""
    names = (path.name for path in temporary.iterdir())
    return sorted(name for name in names if not name.startswith("torchinductor"))


def run_by_torchrun(run: RunFolder) -> bool:
    return isinstance(run, Disturbed) and bool(run.launcher)
