"""Runs a function over many items in forked workers that share them, in order."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
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
    items a worker is given at once.

    Workers do not hear Ctrl-C, which a terminal sends to all: where it hit one that held a lock,
    the others waited forever. Whatever ends the map early, they are ended by this process.
    """
    if jobs == 1 or len(items) <= 1:
        yield from map(work, items)
        return
    _shared.append((work, items))
    others = set(active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("fork"))
    try:
        with _interrupts_held():
            starts = range(0, len(items), chunk)
            parts = deque(pool.submit(_run, start, start + chunk) for start in starts)
        while parts:
            yield from parts.popleft().result()
    except BaseException:
        for worker in set(active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown()
        _shared.pop()


@contextmanager
def _interrupts_held() -> Generator[None]:
    """Ctrl-C waits for the end of the block: while a worker is being started, its parent would
    lose sight of it. Workers started in it keep the handler, and so go on."""
    pressed: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed:
            signal.raise_signal(signal.SIGINT)


def _run(start: int, end: int) -> list[Any]:
    work, items = _shared[-1]
    return [work(item) for item in items[start:end]]
