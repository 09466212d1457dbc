"""Work in a fork has the result and the errors that it would have here."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Process
from select import select
from typing import TypeVar

import pytest

from pcg.errors import InputError
from unity.support import processes
from unity.support.processes import STOPS, WorkBeside, interrupted_by_stops

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")

HERE = os.getpid()
T = TypeVar("T")


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork even where torch is loaded, or there is one processor."""
    monkeypatch.setattr(processes, "_may_fork", lambda: True)


def in_fork(work: Callable[[], T], meanwhile: Callable[[], object]) -> T:
    with WorkBeside(work) as forked:
        forked.begin()
        return forked.result(meanwhile)


def nothing() -> None:
    pass


def test_work_runs_in_a_fork_and_the_rest_here() -> None:
    others: list[int] = []
    assert in_fork(os.getpid, lambda: others.append(os.getpid())) != os.getpid()
    assert others == [os.getpid()]


def test_work_that_has_not_begun_runs_here() -> None:
    pids: list[int] = []
    with WorkBeside(os.getpid) as forked:
        assert forked.result(lambda: pids.append(0)) == os.getpid()
    assert not pids, "what is done in the meantime saves no time"


def test_work_begins_once() -> None:
    reads, writes = os.pipe()
    with WorkBeside(lambda: os.write(writes, b"x")) as forked:
        forked.begin()
        forked.begin()
        assert forked.result(nothing) == 1
    assert os.read(reads, 2) == b"x"
    for end in (reads, writes):
        os.close(end)


def test_an_error_of_unity_is_raised_here() -> None:
    pids: list[int] = []

    def fails() -> None:
        pids.append(os.getpid())
        raise InputError("file.py:12", "expected a module")

    with pytest.raises(InputError, match="expected a module") as raised:
        in_fork(fails, nothing)
    assert raised.value.where == "file.py:12"
    assert not pids, "the work ran here as well"


def dies() -> int:
    if os.getpid() != HERE:
        os._exit(3)
    return 5


def returns_a_closure() -> Callable[[], int]:
    return lambda: 5


def test_work_runs_here_if_the_fork_fails() -> None:
    def divides() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as raised:
        in_fork(divides, nothing)
    assert raised.traceback[-1].name == "divides", "the user sees where it failed"
    assert in_fork(dies, nothing) == 5
    assert in_fork(returns_a_closure, nothing)() == 5, "a result that can't be sent"


@pytest.mark.parametrize("error", [InputError("rules.json", "not JSON"), KeyboardInterrupt()])
def test_the_fork_ends_with_what_runs_here(error: BaseException) -> None:
    never, _ = os.pipe()
    began, begins = os.pipe()

    def waits() -> None:
        os.write(begins, str(os.getpid()).encode())
        os.read(never, 1)

    def fails() -> None:
        select([began], [], [])
        raise error

    with pytest.raises(type(error)):
        in_fork(waits, fails)
    with pytest.raises(ProcessLookupError):
        os.kill(int(os.read(began, 20)), 0)


def test_work_may_print_ask_and_begin_processes(capfd: pytest.CaptureFixture[str]) -> None:
    """A user's module may do what it likes, such as loading data in processes of its own."""

    def works() -> tuple[bytes, int | None]:
        print("in the fork", end=", ")
        child = Process(target=nothing)
        child.start()
        child.join()
        return os.read(0, 3), child.exitcode

    print("before", end=", ")
    asks, answers = os.pipe()
    os.write(answers, b"yes")
    before = os.dup(0)
    os.dup2(asks, 0)
    try:
        assert in_fork(works, nothing) == (b"yes", 0)
    finally:
        os.dup2(before, 0)
        for one in (asks, answers, before):
            os.close(one)
    print("after")
    assert capfd.readouterr().out == "before, in the fork, after\n"


@pytest.fixture
def handlers() -> Iterator[None]:
    before = [signal.getsignal(sign) for sign in STOPS]
    yield
    for sign, handler in zip(STOPS, before, strict=True):
        signal.signal(sign, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("sign", STOPS)
def test_a_signal_to_end_interrupts_a_command(sign: signal.Signals) -> None:
    signal.signal(sign, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt), interrupted_by_stops():
        signal.raise_signal(sign)
    assert signal.getsignal(sign) == signal.SIG_DFL


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("sign", STOPS)
def test_a_signal_that_is_ignored_is_still_ignored(sign: signal.Signals) -> None:
    signal.signal(sign, signal.SIG_IGN)
    with interrupted_by_stops():
        signal.raise_signal(sign)


def test_a_command_in_a_thread_leaves_signals_alone() -> None:
    with ThreadPoolExecutor() as threads:
        threads.submit(lambda: interrupted_by_stops().__enter__()).result()
