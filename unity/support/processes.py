"""Processes of a command: their number, a fork beside this one, and a bar for their progress."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from typing import Generic, NamedTuple, TypeVar

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


def in_fork(work: Callable[[], T], meanwhile: Callable[[], object]) -> T:
    """Return the result of ``work``. It runs in a fork while ``meanwhile`` runs here.

    An error of Unity is raised here. After any other error ``work`` runs here again, and fails as
    it would without a fork. So it does if the fork died. Without a second processor, or if this
    process can't be forked safely, ``work`` runs here alone.
    """
    if not _may_fork():
        return work()
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, sender), daemon=True)
    with warnings.catch_warnings():  # about forks beside threads: see ``_may_fork``
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    sender.close()
    try:
        meanwhile()
        with suppress(EOFError):
            sent = receiver.recv()
            if isinstance(sent, UnityError):
                raise sent
            return sent.result
    finally:
        process.kill()
        process.join()
        receiver.close()
    return work()


def _may_fork() -> bool:
    """Whether a fork saves time, and is safe. Torch may have threads, which a fork lacks."""
    is_safe = sys.platform == "linux" and not current_process().daemon
    return is_safe and "torch" not in sys.modules and cores() > 1


def _run(work: Callable[[], T], sender: Connection) -> None:
    """Do the work, and send what it returns, or its error if that is one of Unity."""
    # A terminal interrupts all processes. The one that forked ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(Exception):
        try:
            sent = _Done(work())
        except UnityError as error:
            sent = error
        sender.send(sent)
