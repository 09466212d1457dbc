"""Annealings side by side, each in a process of its own as far as there are processors.

Problem: annealings from other random numbers reach other plans, whose seconds differ by several
percent. The best of several is better than one that takes as long as all of them.

Method: all but the first annealing run in forks of this process, which know all that was computed
before and send back their best states. Where there is no second processor, or a process can't be
forked safely, annealings run one after the other. The results are the same. An annealing whose
process died runs here.

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
    """Run annealings. Raises what the first one raises."""
    first, others = lanes[0], lanes[1:]
    if not others or not _has_processors():
        for lane in lanes:
            lane.run()
        return
    for lane in others:  # what both need is compiled once, before they part
        lane.annealer.delta.seconds(lane.choice)
    children = [_Child(lane) for lane in others]
    try:
        first.run()
        for child in children:
            child.receive()
    except BaseException:
        for child in children:
            child.interrupt()
        raise
    finally:
        for child in children:
            child.end()


def _has_processors() -> bool:
    """Whether processes can be forked, and would not wait for each other. A fork has no other
    threads, so it must not need them: on Linux, numpy and this package do not."""
    if sys.platform != "linux" or current_process().daemon:
        return False
    # The seconds of another clock, such as one of processor time, differ between processes.
    return len(os.sched_getaffinity(0)) > 1 and clock() is perf_counter


@dataclass
class _Child:
    """A process that runs a lane."""

    lane: Lane
    _is_received: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        context = get_context("fork")
        self._results, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(self.lane, sender), daemon=True)
        with warnings.catch_warnings():  # about forks beside threads: see ``_has_processors``
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        sender.close()

    def receive(self) -> None:
        """Wait for the best state. If the process died, run the lane here."""
        try:
            self.lane.annealer.take_over(self._results.recv())
        except EOFError:
            self.lane.run()
        self._is_received = True

    def interrupt(self) -> None:
        """End the annealing, and keep its best state if it comes soon."""
        if not self._is_received and self._process.is_alive():
            self._process.terminate()
            with suppress(EOFError):
                if self._results.poll(WAIT):
                    self.lane.annealer.take_over(self._results.recv())

    def end(self) -> None:
        """End the process if it goes on."""
        self._process.kill()
        self._process.join()
        self._results.close()


def _run(lane: Lane, results: Connection) -> None:
    """Run a lane in a process of its own, and send its best state."""
    # A terminal interrupts all processes. The one that began this one decides when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt, OutOfTime):
        lane.run()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    results.send(lane.annealer.best)
