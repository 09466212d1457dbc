"""Work in a fork of this process, beside it.

A fork knows all that this process knew when it began, so nothing is sent to it. Its result comes
back pickled. Processes of ``multiprocessing`` would have no standard input, which a debugger of the
user's module needs, and could not begin processes.

The process that forks ends the fork. If it is killed, the system ends the fork.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Generic, TypeVar

T = TypeVar("T")

RUNNING: set[int] = set()
"""The ids of the forks of this process that it has not ended."""
_FIRST = os.getpid()
"""The id of the process that imported this module. Its forks have others."""
_PR_SET_PDEATHSIG = 1
"""From Linux's ``sys/prctl.h``."""


def cores() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def may_fork() -> bool:
    """Return whether a fork is safe here, and would not wait for this process. A fork lacks all
    threads but the one that forked, so its work must not need them. A fork does not fork again, as
    it has company already."""
    return sys.platform == "linux" and cores() > 1 and os.getpid() == _FIRST


class ForkedProcess(Generic[T]):
    """A fork in which ``work`` runs. It has to be ended.

    An interrupt at a terminal, or its end, reaches all processes there. It has no effect in a fork,
    as the process that forked decides what ends. ``interrupt`` raises KeyboardInterrupt in the
    work.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._receiver, sender = Pipe(duplex=False)
        parent = os.getpid()
        _flush()  # or what was printed before would be printed twice
        with warnings.catch_warnings():  # about threads: see ``may_fork``
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            try:
                _end_with(parent)
                _run(work, sender)
            finally:
                os._exit(0)
        RUNNING.add(self._pid)
        sender.close()

    def receive(self) -> T:
        """Wait for the result. Raises EOFError if the work failed or the fork died."""
        return self._receiver.recv()

    def has_result(self, seconds: float) -> bool:
        """Wait for some seconds. Returns whether there is a result, or will never be one."""
        return self._receiver.poll(seconds)

    def interrupt(self) -> None:
        """Interrupt the work, which may still return a result."""
        os.kill(self._pid, signal.SIGTERM)

    def end(self) -> None:
        """End the fork at once, if it goes on. Nothing of it is left."""
        if self._pid in RUNNING:
            RUNNING.discard(self._pid)
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._receiver.close()


def _end_with(parent: int) -> None:
    """Let the system end this fork together with the process that forked it."""
    RUNNING.clear()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended in the meantime
        os._exit(0)


def _run(work: Callable[[], object], sender: Connection) -> None:
    """Do the work in a fork, and send its result. Nothing is sent if the work fails, or if its
    result can't be pickled."""
    for sign in (signal.SIGINT, signal.SIGHUP):
        signal.signal(sign, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(BaseException):
        result = work()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _flush()
        sender.send(result)


def _flush() -> None:
    """Write what was printed."""
    sys.stdout.flush()
    sys.stderr.flush()
