"""Processes of a command: their number, a fork beside this one, and a bar for their progress."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Generic, NamedTuple, Self, TypeVar

from rich.progress import Progress

from pcg.errors import UnityError
from unity.support.console import PlainConsole

T = TypeVar("T")


def cores() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


class Forked(Generic[T]):
    """Work that runs in a fork, beside this process. ``work``: returns a result.

    After ``with Forked(work) as forked`` nothing of it is left.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._running: tuple[Connection, int] | None = None

    def begin(self) -> None:
        """Begin the work, if it has not begun. Without a second processor, or if this process can't
        be forked safely, it runs when its result is asked for."""
        if self._running is None and _may_fork():
            self._running = _forked(self._work)

    def result(self, meanwhile: Callable[[], object]) -> T:
        """Return the result. ``meanwhile`` runs here first if the work is in a fork.

        An error of Unity is raised here. After any other error the work runs here again, and fails
        as it would without a fork. So it does if the fork died.
        """
        if self._running is None:
            return self._work()
        meanwhile()
        sent, (receiver, _) = None, self._running
        with suppress(Exception):  # such as the end of the fork, or a class that is unknown here
            sent = receiver.recv()
        self._end()
        if isinstance(sent, UnityError):
            raise sent
        return sent.result if isinstance(sent, _Done) else self._work()

    def _end(self) -> None:
        """End the fork, if there is one."""
        if self._running is not None:
            receiver, pid = self._running
            self._running = None
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            receiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()


def _may_fork() -> bool:
    """Whether a fork saves time, and is safe. Torch may have threads, which a fork lacks."""
    return sys.platform == "linux" and "torch" not in sys.modules and cores() > 1


def _forked(work: Callable[[], object]) -> tuple[Connection, int]:
    """Begin work in a fork. Returns the connection for its result, and the fork's number."""
    receiver, sender = Pipe(duplex=False)
    _flush()
    with warnings.catch_warnings():  # about forks beside threads: see ``_may_fork``
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()  # a process of multiprocessing has no standard input for a debugger
    if pid == 0:
        try:
            _run(work, sender)
        finally:
            os._exit(0)
    sender.close()
    return receiver, pid


def _run(work: Callable[[], object], sender: Connection) -> None:
    """Do the work, and send what it returns, or its error if that is one of Unity."""
    # A terminal interrupts all processes. The one that forked ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sent = _Done(work())
    except UnityError as error:
        sent = error
    _flush()
    sender.send(sent)


def _flush() -> None:
    """Write what was printed, or it would be printed twice, or not at all."""
    sys.stdout.flush()
    sys.stderr.flush()
