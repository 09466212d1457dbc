"""Switch garbage collection off, or make it rare, during a piece of work or at the end."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """Disable Python's cyclic garbage collection within this context, in forked workers too. With
    hundreds of thousands of live objects, each collection is slow. Cycles are freed afterwards."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


SELDOM = 50_000
"""The number of new objects between two collections if most objects stay alive."""


@contextmanager
def seldom_collected() -> Generator[None]:
    """Make cyclic garbage collection rarer within this context, for work such as a search for
    plans, which keeps most of its objects and makes little garbage."""
    first, *others = before = gc.get_threshold()
    gc.set_threshold(max(first, SELDOM) if first else 0, *others)  # 0 means off
    try:
        yield
    finally:
        gc.set_threshold(*before)


def uncollected_at_exit() -> None:
    """Leave out the cyclic garbage collections with which Python ends, from now on. With torch's
    modules loaded they take one to two seconds. What is not part of a cycle is freed as always."""
    atexit.register(gc.freeze)
