"""Identify processes across computers and over time, although process numbers are reused."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

RUN = "UNITY_RUN"
"""The environment variable with the identity of a process's run."""


@dataclass(frozen=True)
class Process:
    """A process on a computer. ``host`` identifies the computer and the container. ``started``:
    when the process began, in the computer's clock ticks; 0 if unknown."""

    host: str
    pid: int
    started: int

    @property
    def is_here(self) -> bool:
        """Whether it runs on the computer and in the container of this process."""
        return self.host == _host()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs. Assumed for a process that is not here."""
        if not self.is_here:
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        state, started = _stat(self.pid)
        # A zombie has ended, even if nobody has asked for its exit status yet.
        return state not in ("Z", "X") and (self.started == 0 or started == self.started)


def this_process() -> Process:
    """The process that calls this function."""
    return Process(_host(), os.getpid(), _stat(os.getpid())[1])


def _host() -> str:
    """The computer's name and, on Linux, its boot and its namespace of process numbers."""
    name = socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        # Each container of a computer numbers its processes separately.
        namespace = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        return name
    return f"{name}/{boot}/{namespace.strip('pid:[]')}"


def _stat(pid: int) -> tuple[str, int]:
    """State and start time of a process, from /proc. ("", 0) if there is no such entry."""
    try:
        # The name of the command, in parentheses, may contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0
