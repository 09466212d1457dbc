"""Limit the processor time and memory for one foreign rule, certificate or plan.

The operating system enforces the limits: a solver, or a product of huge numbers, does not react to
signals or timers of Python. If processor time runs out, the system ends the process. If memory runs
out, allocations fail. So limited work runs in a process of its own
(``substitutions.rules.workers.limited_map``), whose end loses nothing but its own answer.

Time is processor time, so other work on the machine does not reduce it.
"""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from pathlib import Path
from time import process_time

MIB = 1 << 20
_STATM = Path("/proc/self/statm")


class BudgetSpent(StrEnum):
    """The reason for a missing answer."""

    TIME = "out of time"
    MEMORY = "out of memory"
    DEPTH = "nested too deeply"


@dataclass(frozen=True)
class Budget:
    """A limit of ``seconds`` of processor time, and of ``memory`` MiB in addition to what the
    process already has."""

    seconds: int
    memory: int = 4096

    def start(self) -> None:
        """Give this process the budget from now on. Call it again for the next piece of work."""
        # The system's limit is in whole seconds from the start of the process.
        _limit(resource.RLIMIT_CPU, ceil(process_time()) + self.seconds)
        if (taken := _address_space()) is not None:
            _limit(resource.RLIMIT_AS, taken + self.memory * MIB)


def enter_limited() -> None:
    """Prepare a process for its first budget. If it is ended, it writes no core file, and libraries
    print no complaints about memory. Its parent reports its exceptions."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    _limit(resource.RLIMIT_CORE, 0)


def cause(exit_code: int | None) -> BudgetSpent:
    """Return which limit ended a process, given its exit code as in ``multiprocessing``: the
    negative number of the signal."""
    return BudgetSpent.TIME if exit_code == -signal.SIGXCPU else BudgetSpent.MEMORY


def _address_space() -> int | None:
    """Return the bytes of address space of this process, or None if the system does not say."""
    try:
        return int(_STATM.read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def _limit(which: int, value: int) -> None:
    """Set a soft limit, no higher than the hard one, which stays."""
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (value if hard < 0 else min(value, hard), hard))
