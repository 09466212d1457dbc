"""Run scripts under torchrun, to their end or until they announce that they wait to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

from support.runs.programs import with_packages

PROCESSES = 2
WAIT = (
    r'print(f"waits to be killed: {os.getpid()}\n", end="", flush=True), sys.stdin.read(),'
    " os._exit(1)"
)
"""Code by which a script waits, once it has imported os and sys. A rank says so in one write, which
those of other ranks cannot part."""


def environment() -> dict[str, str]:
    """The environment of processes side by side, each with one thread."""
    return with_packages() | {"OMP_NUM_THREADS": "1"}


def torchrun(script: str, processes: int = PROCESSES) -> list[str]:
    """The command that runs a script as several processes."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*start, "--nproc-per-node", str(processes), script]


def output_of(command: list[str], folder: Path) -> str:
    """The output of a command."""
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[:4000]
    return done.stdout


def killed(command: list[str], folder: Path, processes: int = PROCESSES) -> None:
    """Run until all ranks wait to be killed, and kill them."""
    run = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE,
        stdin=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert run.stdout is not None
    ranks: list[int] = []
    ends = monotonic() + 300
    while len(ranks) < processes:
        line = run.stdout.readline()
        assert line
        assert monotonic() < ends
        if "killed" in line:
            ranks.append(int(line.split()[-1]))
    # Kill each by itself: torchrun gives them sessions of their own.
    for process in (*ranks, run.pid):
        os.kill(process, signal.SIGKILL)
    run.wait()
    run.stdout.close()
