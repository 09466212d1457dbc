"""Runs a function over many items in forked workers, each item within a budget.

Problem: an item may run forever, take all memory or crash the interpreter, in this code or in a
solver. Neither the other items nor the command may suffer from it.
Method: each worker sets its limits again before each item, and the kernel enforces them
(``pcg.budget``). If a worker is ended, only its current item is lost: the result of that item is
``LostItem``. The rest of its chunk goes to another worker, which takes its place.
"""

from __future__ import annotations

import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from time import perf_counter
from traceback import format_exc
from typing import Any, TypeVar

from pcg.budget import Budget, BudgetSpent, cause, enter_limited

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK = 4


@dataclass(frozen=True)
class LostItem:
    """The result of an item that exceeded its budget: which limit it reached, and after how many
    seconds."""

    spent: BudgetSpent
    seconds: float


def limited_map(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    jobs: int,
    budget: Budget,
    *,
    chunk: int = CHUNK,
) -> Iterator[Result | LostItem]:
    """Yield ``work`` of every item, in order, or ``LostItem`` for an item that exceeded ``budget``.

    Results have to be picklable. An exception of ``work`` is raised here. ``chunk``: how many items
    a worker gets at once. Workers ignore Ctrl-C; this process ends them if the map ends early.
    """
    pool = _Pool(work, items, budget, deque(_chunks(range(len(items)), chunk)))
    try:
        for _ in range(min(jobs, len(pool.chunks))):
            pool.add()
        for number in range(len(items)):
            while number not in pool.found:
                pool.receive()
            yield pool.found.pop(number)
    finally:
        pool.close()


def _chunks(numbers: range, size: int) -> Iterator[range]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


class _Pool:
    """Workers by their connections, with the numbers of the items that each has still to do.
    ``found``: the results that are not yielded yet, by number."""

    def __init__(
        self,
        work: Callable[[Any], Any],
        items: Sequence[Any],
        budget: Budget,
        chunks: deque[range],
    ) -> None:
        self._work, self._items, self._budget = work, items, budget
        self.chunks = chunks
        self.found: dict[int, Any] = {}
        self._workers: dict[Connection, ForkProcess] = {}
        self._left: dict[Connection, range] = {}
        self._since: dict[Connection, float] = {}

    def add(self) -> None:
        """Start a worker with a chunk of its own."""
        parent_end, worker_end = get_context("fork").Pipe()
        with _interrupts_blocked():
            worker = get_context("fork").Process(
                target=self._serve, args=(worker_end, [parent_end, *self._workers]), daemon=True
            )
            worker.start()
        worker_end.close()
        self._workers[parent_end] = worker
        self._hand_out(parent_end)

    def _serve(self, pipe: Connection, others: Sequence[Connection]) -> None:
        """The loop of a worker: receive numbers of items, send their results."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for other in others:  # Else a worker would not notice that the parent has ended.
            other.close()
        enter_limited()
        try:
            while numbers := pipe.recv():
                for number in numbers:
                    pipe.send_bytes(self._answer(self._items[number]))
        except (EOFError, OSError):
            return

    def _answer(self, item: Any) -> bytes:
        self._budget.start()
        start = perf_counter()
        try:
            return pickle.dumps((self._work(item), None))
        except MemoryError:
            return pickle.dumps((LostItem(BudgetSpent.MEMORY, perf_counter() - start), None))
        except RecursionError:
            return pickle.dumps((LostItem(BudgetSpent.DEPTH, perf_counter() - start), None))
        except Exception as error:
            return _failure(error)

    def receive(self) -> None:
        """Wait for results, and replace each worker that was ended."""
        for pipe in wait(list(self._workers)):
            assert isinstance(pipe, Connection)
            try:
                result, error = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                self._bury(pipe)
                continue
            if error is not None:
                raise error
            number, self._left[pipe] = self._left[pipe][0], self._left[pipe][1:]
            self.found[number], self._since[pipe] = result, perf_counter()
            if not self._left[pipe]:
                self._hand_out(pipe)

    def _hand_out(self, pipe: Connection) -> None:
        """Give a worker its next chunk, or end it if none is left."""
        if self.chunks:
            self._left[pipe], self._since[pipe] = self.chunks.popleft(), perf_counter()
            pipe.send(self._left[pipe])
            return
        pipe.send(None)
        self._remove(pipe)

    def _bury(self, pipe: Connection) -> None:
        """Record that the current item of an ended worker is lost, and give the rest of its chunk
        to another worker."""
        lost, rest = self._left[pipe][0], self._left[pipe][1:]
        seconds = perf_counter() - self._since[pipe]
        self.found[lost] = LostItem(cause(self._remove(pipe)), seconds)
        if rest:
            self.chunks.appendleft(rest)
        if self.chunks:
            self.add()

    def _remove(self, pipe: Connection) -> int | None:
        worker = self._workers.pop(pipe)
        self._left.pop(pipe, None)
        worker.join()
        pipe.close()
        return worker.exitcode

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.terminate()
        for pipe in list(self._workers):
            self._remove(pipe)


def _failure(error: Exception) -> bytes:
    """A pickled exception for the parent process, with a note of where it was raised."""
    error.add_note(format_exc())
    try:
        pickle.loads(packed := pickle.dumps((None, error)))
    except Exception:
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
    return packed


@contextmanager
def _interrupts_blocked() -> Generator[None]:
    """Delay Ctrl-C in this process until the end of the block. A process that is forked in the
    block starts with Ctrl-C blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
