"""Annealings side by side, in as many processes as there are processors.

Problem: annealings from other random numbers reach other plans, whose seconds differ by several
percent. The best of several is better than one that takes as long as all of them.

Method: each process runs neighbours of the list, one after the other, as annealings of one graph
share what they price. The first ones run in this process, all others in forks of it, which know all
that was computed before and send back their best states. Where there is no second processor, or a
process can't be forked safely, all annealings run here. The results are the same. Annealings whose
process died run here.

An interrupt ends all annealings. Their best states so far are kept.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from time import perf_counter

from search.cost.progress import OutOfTime, clock
from search.map.choose.choosing import Choice
from search.refine.annealing import Annealer, Stages

WAIT = 1.0
"""The most seconds to wait for the best state of a process after an interrupt."""


@dataclass
class Lane:
    """An annealing, from a choice through stages."""

    annealer: Annealer
    choice: Choice
    stages: Stages

    def run(self) -> None:
        self.annealer.annealed(self.choice, self.stages)

    @property
    def best(self) -> Choice:
        """The best choice that was found until now."""
        return self.annealer.so_far(self.choice)


def run_lanes(lanes: Sequence[Lane]) -> None:
    """Run annealings. Raises what those raise that run in this process."""
    count = max(1, min(_processors(), len(lanes)))
    bounds = [number * len(lanes) // count for number in range(count + 1)]
    own, *others = (lanes[begin:end] for begin, end in pairwise(bounds))
    if others:  # what all need is compiled once, before they part
        lanes[0].annealer.load()
    children = [_Child(some) for some in others]
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


def run_in_turn(lanes: Sequence[Lane]) -> None:
    """Run annealings one after the other in this process, so that each knows what others priced."""
    for lane in lanes:
        lane.run()


def _processors() -> int:
    """The number of processes that would not wait for each other; 1 if processes can't be forked. A
    fork has no other threads, so it must not need them: on Linux, numpy and this package do not."""
    # The seconds of another clock, such as one of processor time, differ between processes.
    if sys.platform != "linux" or current_process().daemon or clock() is not perf_counter:
        return 1
    return len(os.sched_getaffinity(0))


@dataclass
class _Child:
    """A process that runs some lanes."""

    lanes: Sequence[Lane]
    _is_received: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        context = get_context("fork")
        self._results, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(self.lanes, sender), daemon=True)
        with warnings.catch_warnings():  # about forks beside threads: see ``_processors``
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        sender.close()

    def receive(self) -> None:
        """Wait for the best states. If the process died, run the lanes here."""
        try:
            self._take_over()
        except EOFError:
            run_in_turn(self.lanes)
        self._is_received = True

    def interrupt(self) -> None:
        """End the annealings, and keep their best states if these come soon."""
        if not self._is_received and self._process.is_alive():
            self._process.terminate()
            with suppress(EOFError):
                if self._results.poll(WAIT):
                    self._take_over()

    def _take_over(self) -> None:
        for lane, best in zip(self.lanes, self._results.recv(), strict=True):
            lane.annealer.take_over(best)

    def end(self) -> None:
        """End the process if it goes on."""
        self._process.kill()
        self._process.join()
        self._results.close()


def _run(lanes: Sequence[Lane], results: Connection) -> None:
    """Run lanes in a process of their own, and send their best states."""
    # A terminal interrupts all processes. The one that began this one decides when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt, OutOfTime):
        run_in_turn(lanes)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    results.send([lane.annealer.best for lane in lanes])
