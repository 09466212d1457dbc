"""`unity run` in this process, whose workers are forked from one server for all tests.

Starting Python and torch anew takes longer than most runs. Workers print to files, because they
inherit the standard output of the server instead of that of a test.
"""

from __future__ import annotations

import io
import os
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import forkserver
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from runtime.world.launch import start_server
from unity.run import app
from unity.support.cli import run_app

_SERVER: Any = forkserver._forkserver
"""The server from which workers are forked."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended: its status, and the output of it and of its workers."""

    status: int
    out: str
    err: str


def run_here(*arguments: object) -> Finished:
    """Run `unity run` in this process."""
    files = _files()
    for file in files:
        file.write_text("")
    out, err = io.StringIO(), io.StringIO()
    status: object = None
    try:
        with redirect_stdout(out), redirect_stderr(err):
            run_app(app, "run", [str(argument) for argument in arguments])
    except SystemExit as ended:
        status = ended.code
    assert isinstance(status, int)
    workers = [file.read_text() for file in files]
    return Finished(status, workers[0] + out.getvalue(), workers[1] + err.getvalue())


def workers_here() -> list[int]:
    """The processes that the server has forked, in their order."""
    return sorted(_children(_server()))


def no_worker_is_left(within: float = 10.0) -> bool:
    """Whether all processes that the server has forked have ended."""
    end = time.monotonic() + within
    while (left := _children(_server())) and time.monotonic() < end:
        time.sleep(0.05)
    return not left


@lru_cache(maxsize=1)
def _files() -> tuple[Path, Path]:
    """The files for standard output and error of workers. Starts their server."""
    folder = Path(mkdtemp(prefix="unity-test-"))
    files = folder / "out", folder / "err"
    _SERVER._stop()  # a server that other tests have started prints elsewhere
    kept = [os.dup(number) for number in (1, 2)]
    sys.stdout.flush()
    for number, file in enumerate(files, 1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        start_server()
    finally:
        for number, old in enumerate(kept, 1):
            os.dup2(old, number)
            os.close(old)
    return files


def _server() -> int:
    process = _SERVER._forkserver_pid
    assert isinstance(process, int)
    return process


def _children(process: int) -> list[int]:
    numbers = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in numbers]
