"""The number of processes of a command, and a bar that shows their progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TypeVar

from rich.progress import Progress

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
