"""Runs a function over many items in forked workers that share the items; results in order."""

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

# The function and the items of each running map. Operators hold functions, which cannot be sent to
# another process. A forked worker has the items already, and is sent only their positions.
_shared: list[tuple[Callable[[Any], Any], Sequence[Any]]] = []


def parallel_map(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int, *, chunk: int = CHUNK
) -> Iterator[Result]:
    """Yield ``work`` of every item, in order. Results have to be picklable. ``chunk``: how many
    items a worker gets at once.

    Workers ignore Ctrl-C, which a terminal sends to all processes: if it ended a worker that held a
    lock, the others would wait forever. This process ends the workers if the map ends early.
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
    """Delay Ctrl-C until the end of the block. An interrupt while a worker is being started would
    leave a worker that its parent does not know. Workers that are started in the block inherit the
    handler, and so ignore Ctrl-C."""
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
