"""Switch garbage collection off, or let it be seldom, while a piece of work runs."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """Hold back Python's searches for cycles of garbage, in forked workers too: among hundreds of
    thousands of objects that stay, each search looks at all. What is in cycles is freed after."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


SELDOM = 50_000
"""Objects that are made between two searches for garbage, where most of them stay."""


@contextmanager
def seldom_collected() -> Generator[None]:
    """Let Python search less often for cycles of garbage, for work that makes little of it and
    keeps most of what it makes, as a search for plans does."""
    first, *others = before = gc.get_threshold()
    gc.set_threshold(max(first, SELDOM) if first else 0, *others)  # 0: it is off
    try:
        yield
    finally:
        gc.set_threshold(*before)
