"""Identify processes across computers and time, as process numbers are reused."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

RUN = "UNITY_RUN"
"""The variable of a process's environment that has the identity of its run."""


@dataclass(frozen=True)
class Process:
    """A process of some computer. ``host`` tells computers and containers from each other;
    ``started`` is when it began, in the computer's own ticks, 0 where that is not known."""

    host: str
    pid: int
    started: int

    @property
    def is_here(self) -> bool:
        """Whether its number means something to this process."""
        return self.host == _host()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; of one that is not here this is never known, and so assumed."""
        if not self.is_here:
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        state, started = _stat(self.pid)
        # A zombie has ended, whoever has not asked for its status yet.
        return state not in ("Z", "X") and (self.started == 0 or started == self.started)


def this_process() -> Process:
    """The one that asks."""
    return Process(_host(), os.getpid(), _stat(os.getpid())[1])


def _host() -> str:
    """The computer's name and, on Linux, which start of it this is and which numbering."""
    name = socket.gethostname()
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        # Containers of one computer number their processes each for itself.
        numbering = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        return name
    return f"{name}/{start}/{numbering.strip('pid:[]')}"


def _stat(pid: int) -> tuple[str, int]:
    """State and start of a process, from /proc; unknown without it."""
    try:
        # The command's name, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0
