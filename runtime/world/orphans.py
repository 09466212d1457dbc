"""End a process whose parent was killed as if it were told to, within bounded time."""

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
"""Seconds between looks at the parent."""


def end_with_parent(
    join: Callable[[], object], grace: float, temporary: Sequence[Path] = ()
) -> None:
    """Once ``join``, which waits for the parent's end, returns, tell this process to end; where it
    has not after ``grace`` seconds, end it. ``temporary``: folders that the parent would have
    removed."""

    def watch() -> None:
        join()
        ORPHANED.set()
        for folder in temporary:
            shutil.rmtree(folder, ignore_errors=True)
        # To the process, so that a main thread that waits for another rank gets it too.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os._exit(STATUS)

    threading.Thread(target=watch, daemon=True).start()


def parent_ended() -> None:
    """Wait until the process that started this one has ended, as torchrun may without a word."""
    parent = os.getppid()
    if sys.platform == "linux":
        _end_of(parent)
    while os.getppid() == parent:
        time.sleep(_POLL)


def _end_of(process: int) -> None:
    """Wait for the end of a process without looking again and again, where the kernel can tell."""
    with contextlib.suppress(OSError):  # it has ended, or the kernel is old
        handle = os.pidfd_open(process)
        try:
            ends = select.poll()
            ends.register(handle, select.POLLIN)
            ends.poll()
        finally:
            os.close(handle)


def end_undisturbed() -> None:
    """Heed no signal that asks this process to end, for it does so, and first says why. Who sends
    one kills it in the end, should it hang."""
    if threading.current_thread() is threading.main_thread():
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""
ORPHANED = threading.Event()
"""Set once the parent of this process has ended, and with it the store that it kept."""
STATUS = 1
"""Nobody asks for it."""
