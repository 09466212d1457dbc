"""Limit the processor time and memory that one foreign rule, certificate or plan may take.

The kernel keeps the limits, not the code that they are for: a solver or a multiplication of huge
numbers hears no signal and no timer of Python's. Where processor time runs out the kernel ends the
process, where memory does, allocations fail; so what is limited runs in a process of its own
(``substitutions.rules.workers.limited_map``), which takes nothing with it but its own answer.

Time is that of the processor, which other work on the machine does not take away.
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
    """Why there is no answer."""

    TIME = "out of time"
    MEMORY = "out of memory"
    DEPTH = "nested too deeply"


@dataclass(frozen=True)
class Budget:
    """``seconds`` of processor time; ``memory`` in MiB, beyond what the process has already."""

    seconds: int
    memory: int = 4096

    def start(self) -> None:
        """From now on, this process has this budget; call it again for the next piece of work."""
        # In whole seconds, counted from the start of the process.
        _limit(resource.RLIMIT_CPU, ceil(process_time()) + self.seconds)
        if (taken := _address_space()) is not None:
            _limit(resource.RLIMIT_AS, taken + self.memory * MIB)


def enter_limited() -> None:
    """What a process does once, before its first budget: where it is ended, it writes no core file,
    and libraries do not complain of memory on the terminal. Its exceptions are told by others."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    _limit(resource.RLIMIT_CORE, 0)


def cause(exit_code: int | None) -> BudgetSpent:
    """What a process had spent that ended before it answered, by its exit code as
    ``multiprocessing`` has it: the negative number of the signal."""
    return BudgetSpent.TIME if exit_code == -signal.SIGXCPU else BudgetSpent.MEMORY


def _address_space() -> int | None:
    """Bytes of it that this process has; None where the system does not say."""
    try:
        return int(_STATM.read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def _limit(which: int, value: int) -> None:
    """Set a soft limit, no higher than the hard one, which stays."""
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (value if hard < 0 else min(value, hard), hard))
