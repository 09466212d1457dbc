"""Processes of a command: how they are interrupted, a fork beside, and a bar of progress."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import current_thread, main_thread
from typing import Generic, NamedTuple, Self, TypeVar

from rich.progress import Progress

from pcg.errors import UnityError
from pcg.fork import ForkedProcess, may_fork
from unity.support.console import PlainConsole

T = TypeVar("T")

STOPS = signal.SIGTERM, signal.SIGHUP
"""Signals that ask a process to end: those of ``timeout``, of systems for batch jobs, and of a
terminal that is closed."""


@contextmanager
def interrupted_by_stops() -> Generator[None]:
    """Let signals that ask this process to end interrupt it as Ctrl-C does. Those for which there
    is a handler, or which are ignored (``nohup``), stay as they are."""
    own = STOPS if current_thread() is main_thread() else ()  # others can't set handlers
    by_default = [sign for sign in own if signal.getsignal(sign) == signal.SIG_DFL]
    for sign in by_default:
        signal.signal(sign, signal.default_int_handler)
    try:
        yield
    finally:
        for sign in by_default:
            signal.signal(sign, signal.SIG_DFL)


def tracked(results: Iterator[T], count: int, what: str, *, quiet: bool) -> Iterator[T]:
    """Yield the results as they come, with a bar on the standard error if that is a terminal."""
    console = PlainConsole(stderr=True)
    with Progress(
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # or output to a file would not get there
        disable=quiet or not console.is_terminal,
    ) as progress:
        yield from progress.track(results, total=count, description=what)


class _Done(NamedTuple, Generic[T]):
    """What work has returned."""

    result: T


class WorkBeside(Generic[T]):
    """Work that runs in a fork, beside this process. ``work``: returns a result.

    After ``with WorkBeside(work) as forked`` nothing of it is left.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._fork: ForkedProcess[_Done[T] | UnityError] | None = None

    def begin(self) -> None:
        """Begin the work, if it has not begun. Without a second processor, or if this process can't
        be forked safely, it runs when its result is asked for."""
        if self._fork is None and _may_fork():
            self._fork = ForkedProcess(partial(_outcome, self._work))

    def result(self, meanwhile: Callable[[], object]) -> T:
        """Return the result. ``meanwhile`` runs here first if the work is in a fork.

        An error of Unity is raised here. After any other error the work runs here again, and fails
        as it would without a fork. So it does if the fork died.
        """
        if self._fork is None:
            return self._work()
        meanwhile()
        sent = None
        with suppress(Exception):  # such as the end of the fork, or a class that is unknown here
            sent = self._fork.receive()
        self._end()
        if isinstance(sent, UnityError):
            raise sent
        return self._work() if sent is None else sent.result

    def _end(self) -> None:
        """End the fork, if there is one."""
        if self._fork is not None:
            self._fork.end()
            self._fork = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()


def _may_fork() -> bool:
    """Whether a fork is safe and saves time. Torch may have threads, which a fork lacks."""
    return "torch" not in sys.modules and may_fork()


def _outcome(work: Callable[[], T]) -> _Done[T] | UnityError:
    """What work returns, or its error if that is one of Unity."""
    try:
        return _Done(work())
    except UnityError as error:
        return error
