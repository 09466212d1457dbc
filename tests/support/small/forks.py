"""Waits for the forks of a test."""

from __future__ import annotations

import os

from pcg.fork import RUNNING


def wait_for_forks() -> None:
    """Wait until the work of all forks has ended. Their results can still be received."""
    for pid in RUNNING:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
