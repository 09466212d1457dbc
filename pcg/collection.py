"""Switch garbage collection off while a piece of work runs."""

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
