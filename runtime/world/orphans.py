"""End a process after its parent was killed: by SIGTERM, and within bounded time."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_POLL = 0.5
"""Seconds between two checks whether the parent still runs."""


def end_with_parent(
    join: Callable[[], object], grace: float, temporary: Sequence[Path] = ()
) -> None:
    """Start a thread that ends this process after its parent has ended.

    ``join`` waits for the end of the parent. Then the thread removes the folders ``temporary``,
    which the parent would have removed, and sends SIGTERM to this process. ``grace`` seconds later
    it ends the process.
    """

    def watch() -> None:
        join()
        ORPHANED.set()
        for folder in temporary:
            shutil.rmtree(folder, ignore_errors=True)
        # To the process, so that the signal reaches a main thread which waits for another rank.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os._exit(STATUS)

    threading.Thread(target=watch, daemon=True).start()


def parent_ended() -> None:
    """Wait until the parent process has ended. torchrun may end without telling its workers."""
    parent = os.getppid()
    if sys.platform == "linux":
        _wait_for_end(parent)
    while os.getppid() == parent:
        time.sleep(_POLL)


def _wait_for_end(process: int) -> None:
    """Wait for the end of a process without polling. Returns early if the kernel is too old."""
    with contextlib.suppress(OSError):  # the process has ended, or the kernel is too old
        handle = os.pidfd_open(process)
        try:
            ends = select.poll()
            ends.register(handle, select.POLLIN)
            ends.poll()
        finally:
            os.close(handle)


def end_undisturbed() -> None:
    """Ignore signals that ask this process to end: it is about to end, and first reports why. If it
    hangs, the sender of the signal kills it later."""
    if threading.current_thread() is threading.main_thread():
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""
ORPHANED = threading.Event()
"""Set once the parent of this process has ended, and with it the store that the parent kept."""
STATUS = 1
"""The exit status of a process that had to be ended. Nobody is left to read it."""
