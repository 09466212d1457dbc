"""Work in a fork has the result and the errors that it would have here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing import active_children

import pytest

from pcg.errors import InputError
from unity.support import processes
from unity.support.processes import in_fork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")

HERE = os.getpid()


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork even where torch is loaded, or there is one processor."""
    monkeypatch.setattr(processes, "_may_fork", lambda: True)


def nothing() -> None:
    pass


def test_work_runs_in_a_fork_and_the_rest_here() -> None:
    others: list[int] = []
    assert in_fork(os.getpid, lambda: others.append(os.getpid())) != os.getpid()
    assert others == [os.getpid()]


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

    def waits() -> None:
        os.read(never, 1)

    def fails() -> None:
        raise error

    with pytest.raises(type(error)):
        in_fork(waits, fails)
    assert not active_children()
