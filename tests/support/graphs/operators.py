"""Register operators for the duration of a test."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pcg.ops import OPERATORS
from pcg.types.operator import Operator


@contextmanager
def known_within(*operators: Operator) -> Generator[None]:
    """Add operators within a ``with`` block. These, and all that are added within it, are removed
    after."""
    known = OPERATORS._by_name  # pyright: ignore[reportPrivateUsage]
    before = dict(known)
    OPERATORS.add(operators)
    try:
        yield
    finally:
        known.clear()
        known.update(before)
