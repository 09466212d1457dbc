"""Forks send what their work returns, can be interrupted, and leave nothing behind."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from subprocess import PIPE, run
from time import sleep
from typing import TypeVar

import pytest

from pcg.fork import RUNNING, ForkedProcess, may_fork

T = TypeVar("T")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")


def ended(fork: ForkedProcess[T]) -> bool:
    """End a fork. Returns whether nothing is left of it."""
    (pid,) = RUNNING
    fork.end()
    fork.end()  # has no effect
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    return not RUNNING


def test_a_fork_knows_what_was_known_and_changes_nothing_here() -> None:
    known = [1]

    def works() -> list[int]:
        known.append(2)
        return known

    fork = ForkedProcess(works)
    assert fork.receive() == [1, 2]
    assert known == [1]
    assert ended(fork)


def fails() -> None:
    raise ValueError


@pytest.mark.parametrize(
    "work", [fails, sys.exit, partial(partial, lambda: 0), partial(os._exit, 3)]
)
def test_work_without_a_result_that_can_be_sent(work, capfd: pytest.CaptureFixture[str]) -> None:
    fork = ForkedProcess(work)
    assert fork.has_result(60.0), "that there is none is known"
    with pytest.raises(EOFError):
        fork.receive()
    assert ended(fork)
    assert not capfd.readouterr().err, "the process that forked reports what failed"


def test_an_interrupt_lets_work_return_what_it_has() -> None:
    begun, begins = os.pipe()

    def works() -> str:
        with suppress(KeyboardInterrupt):
            os.write(begins, b"x")
            sleep(60)
        return "so far"

    fork = ForkedProcess(works)
    assert os.read(begun, 1)
    assert not fork.has_result(0.0)
    fork.interrupt()
    assert fork.receive() == "so far"
    assert ended(fork)
    os.close(begun)
    os.close(begins)


def test_a_fork_does_not_fork_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert may_fork()
    fork = ForkedProcess(may_fork)
    assert not fork.receive()
    assert ended(fork)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert not may_fork(), "it would wait for this process"


@pytest.mark.parametrize("ends", ["sys.exit()", "os.kill(os.getpid(), 9)"])
def test_a_fork_ends_with_the_process_that_began_it(ends: str) -> None:
    """Its end of the pipe, here the standard output, is closed."""
    begins = "pcg.fork.ForkedProcess(lambda: time.sleep(600))"
    command = sys.executable, "-c", f"import os, sys, time, pcg.fork; {begins}; {ends}"
    run(command, stdout=PIPE, check=False, timeout=60)
