"""Runs a function over many items in forked workers that share them, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK = 4

# What the workers of the running map work on. Operators hold functions, which cannot be sent to
# a process; a forked worker has them already, and is sent positions only.
_shared: list[tuple[Callable[[Any], Any], Sequence[Any]]] = []


def parallel_map(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int, *, chunk: int = CHUNK
) -> Iterator[Result]:
    """``work`` of every item, in order; results have to survive pickling. ``chunk``: how many
    items a worker is given at once."""
    if jobs == 1 or len(items) <= 1:
        yield from map(work, items)
        return
    _shared.append((work, items))
    try:
        with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
            yield from pool.map(_run, range(len(items)), chunksize=chunk)
    finally:
        _shared.pop()


def _run(position: int) -> Any:
    work, items = _shared[-1]
    return work(items[position])
