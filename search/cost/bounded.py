"""Seconds of a step if it is faster than a limit; the simulation of slower steps ends early.

Problem: a search asks for many programs whether they are faster than the best so far, and hardly
any is.

Method: branch and bound. The longest path of tasks that wait for each other takes no longer than
the step, whatever else is on their streams. It is computed before anything is simulated. During the
simulation, the start of every task gives a lower bound of the step, by the longest path from there
on. The first bound that reaches the limit ends the simulation (``simulate``).

The seconds are those of the simulation to the last bit. A None is as exact. A path that ends with a
task is added up in the order of the simulation, and rounding keeps the order of sums. A path that
begins with a task is added up in another order, so it must exceed the limit by more than rounding.

Complexity: the tasks and their dependencies, twice, and the simulation of the tasks that start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from pcg.memo import Answers
from search.cost.cost import Duration
from search.cost.simulate import Clocks, Times
from search.cost.tasks import Task

ROUNDING = 1e-9
"""A relative error far above that of a million rounded sums."""
FEW = 24
"""The number of devices up to which a loop over them is faster than arrays."""


@dataclass(eq=False)
class BoundedSimulation:
    """Simulates programs on a number of devices."""

    devices: int
    few: int = FEW
    """The number of devices up to which they are simulated one by one."""
    _waits: Answers[tuple[Duration, Duration], bool] = field(init=False)

    def __post_init__(self) -> None:
        self._waits = Answers(_wait)

    def seconds(self, issued: Sequence[Task], limit: float) -> float | None:
        """Seconds of a step; None if it takes ``limit`` seconds or longer."""
        after: list[tuple[int, ...]] = []
        ends: list[float] = []
        for task in issued:
            before = self._certain_dependencies(task, issued)
            start = 0.0
            for number in before:
                if ends[number] > start:
                    start = ends[number]
            end = start + task.duration.shortest
            if end >= limit:
                return None
            after.append(before)
            ends.append(end)
        rest = _rest(issued, after)
        if self.devices <= self.few:
            return _few_devices(issued, rest, self.devices, limit)
        clocks, most = Clocks(self.devices), limit * (1 + ROUNDING)
        for task, seconds in zip(issued, rest, strict=True):
            clocks.advance(task)
            if _first(clocks.starts[-1]) + seconds >= most or clocks.last >= limit:
                return None
        return clocks.last

    def _certain_dependencies(self, task: Task, issued: Sequence[Task]) -> tuple[int, ...]:
        """The tasks for which every group of devices of a task waits."""
        duration = task.duration
        for number in task.after:
            if not self.waits(duration, issued[number].duration):
                return tuple([n for n in task.after if self.waits(duration, issued[n].duration)])
        return task.after

    def waits(self, duration: Duration, other: Duration) -> bool:
        """Whether each group of a task (the first) has a device that takes part in the second."""
        return (
            other is duration or len(other.devices) == self.devices or self._waits[duration, other]
        )


def _few_devices(
    issued: Sequence[Task], rest: Sequence[float], devices: int, limit: float
) -> float | None:
    """Seconds of a step as ``Clocks`` computes them, one device at a time."""
    streams = [[0.0] * devices, [0.0] * devices]
    ready: list[list[float]] = []
    last, most = 0.0, limit * (1 + ROUNDING)
    for task, remaining in zip(issued, rest, strict=True):
        clock, inputs = streams[task.stream], [ready[number] for number in task.after]
        first, done = inf, [0.0] * devices
        if task.passes and inputs:
            done = inputs[0][:] if len(inputs) == 1 else [*map(max, *inputs)]
        for group, seconds in task.duration.members:
            start = 0.0
            for times in (clock, *inputs):
                for device in group:
                    if times[device] > start:
                        start = times[device]
            first = min(first, start)
            end = start + seconds
            last = max(last, end)
            for device in group:
                clock[device] = done[device] = end
        ready.append(done)
        if task.duration.members and (first + remaining >= most or last >= limit):
            return None
    return last


def _wait(pair: tuple[Duration, Duration]) -> bool:
    """Whether each group of a task (the first) has a device that takes part in the second task."""
    duration, other = pair
    return not any(other.devices.isdisjoint(group) for group in duration.groups.tolist())


def _first(start: Times) -> float:
    """The time at which the first group of a task starts."""
    if not isinstance(start, np.ndarray):
        return start
    return float(start.min()) if start.size else 0.0


def _rest(issued: Sequence[Task], after: Sequence[Sequence[int]]) -> list[float]:
    """For each task, the seconds of the longest path of tasks that begins with it."""
    rest = [0.0] * len(issued)
    for number in range(len(issued) - 1, -1, -1):
        longest = rest[number] = rest[number] + issued[number].duration.shortest
        for other in after[number]:
            if rest[other] < longest:
                rest[other] = longest
    return rest
