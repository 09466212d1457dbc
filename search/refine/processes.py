"""Searches side by side, in as many processes as there are processors.

Problem: annealings from other random numbers reach other plans, whose seconds differ by several
percent. The best of several is better than one that takes as long as all of them. So is the best of
the rewrites of several graphs.

Method: each process runs neighbours of the list, one after the other, as searches of one graph
share what they price. The first ones run in this process, all others in forks of it, which know all
that was computed before and send back their results. What they priced is lost, so searches should
be long. Where there is no second processor, or a process can't be forked safely, all run here. The
results are the same. Searches whose process died run here.

An interrupt ends all searches. Their results so far are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from pcg.fork import ForkedProcess, cores, may_fork
from search.cost.progress import OutOfTime, clock

WAIT = 1.0
"""The most seconds to wait for the results of a process after an interrupt."""
T = TypeVar("T")


class Search(Protocol[T]):
    """A search that may run in a process of its own."""

    def run(self) -> None:
        """Search until the end or an interrupt."""
        ...

    @property
    def result(self) -> T:
        """What was found until now. It can be sent to another process."""
        ...

    def take_over(self, result: T) -> None:
        """Take over the result of the same search in another process."""
        ...


def run_side_by_side(searches: Sequence[Search[T]]) -> None:
    """Run searches. Raises what those raise that run in this process."""
    count = max(1, min(_processors(), len(searches)))
    bounds = [number * len(searches) // count for number in range(count + 1)]
    own, *others = (searches[begin:end] for begin, end in pairwise(bounds))
    children = [Child(some) for some in others]
    try:
        run_in_turn(own)
        for child in children:
            child.receive()
    except BaseException:
        for child in children:
            child.interrupt()
        raise
    finally:
        for child in children:
            child.end()


def run_in_turn(searches: Sequence[Search[T]]) -> None:
    """Run searches one after the other in this process, so that each knows what others priced."""
    for one in searches:
        one.run()


def _processors() -> int:
    """The number of processes that would not wait for each other; 1 if processes can't be forked.
    Neither numpy nor this package needs threads in a fork."""
    # The seconds of another clock, such as one of processor time, differ between processes.
    return cores() if clock() is perf_counter and may_fork() else 1


def begun(search: Search[T]) -> Child[T] | None:
    """Begin a search in a process of its own, which the caller has to end. None if there is no
    second processor, or if a process can't be forked safely."""
    return Child([search]) if _processors() > 1 else None


@dataclass
class Child(Generic[T]):
    """A process that runs some searches."""

    searches: Sequence[Search[T]]
    _is_received: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._fork = ForkedProcess(partial(_results, self.searches))

    def receive(self) -> None:
        """Wait for the results. If the process died, run the searches here."""
        try:
            self._take_over()
        except EOFError:
            run_in_turn(self.searches)
        self._is_received = True

    def interrupt(self) -> None:
        """End the searches, and keep their results if these come soon."""
        if not self._is_received:
            self._fork.interrupt()
            self.wait()

    def wait(self) -> None:
        """Keep the results if they come soon."""
        with suppress(EOFError):
            if self._fork.has_result(WAIT):
                self._take_over()

    def _take_over(self) -> None:
        for one, result in zip(self.searches, self._fork.receive(), strict=True):
            one.take_over(result)

    def end(self) -> None:
        """End the process if it goes on."""
        self._fork.end()


def _results(searches: Sequence[Search[T]]) -> list[T]:
    """Run searches until the end or an interrupt. Returns their results."""
    with suppress(KeyboardInterrupt, OutOfTime):
        run_in_turn(searches)
    return [one.result for one in searches]
