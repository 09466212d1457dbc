"""Seconds of a step where it is faster than a limit, and no more than that where it is not.

Problem: a search asks of many programs which is faster than the best so far, and hardly one is.

Method: branch and bound. Of the tasks that wait for each other, the longest way through them takes
no longer than the step, whatever else is on their streams: it is looked at before anything is
simulated. Then every task that starts says how long the step takes at least, by the longest way
from there on, and the first that reaches the limit ends the simulation (``simulate``).

Seconds are those of the simulation to the last bit. So is the answer that there are none: a way is
added up in the order of the simulation, and rounding keeps sums in order; what remains after a task
is added up in another order, and has to be over the limit by more than rounding.

Complexity: the tasks and what each waits for, twice, and the simulation of those that start.
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
"""Relative: far more than what the rounding of a million sums comes to."""
FEW = 24
"""Devices of which each by itself takes less time than arrays do."""


@dataclass(eq=False)
class BoundedSimulation:
    """Simulates programs on a number of devices."""

    devices: int
    few: int = FEW
    """So many devices are looked at one by one."""
    _waits: Answers[tuple[Duration, Duration], bool] = field(init=False)

    def __post_init__(self) -> None:
        self._waits = Answers(_wait)

    def seconds(self, issued: Sequence[Task], limit: float) -> float | None:
        """Seconds of a step; None if it takes ``limit`` or longer."""
        after = [self._sure(task, issued) for task in issued]
        if max(longest_ways(issued, after), default=0.0) >= limit:
            return None
        rest = _rest(issued, after)
        if self.devices <= self.few:
            return _few_devices(issued, rest, self.devices, limit)
        clocks, most = Clocks(self.devices), limit * (1 + ROUNDING)
        for task, seconds in zip(issued, rest, strict=True):
            clocks.advance(task)
            if _first(clocks.starts[-1]) + seconds >= most or clocks.last >= limit:
                return None
        return clocks.last

    def _sure(self, task: Task, issued: Sequence[Task]) -> tuple[int, ...]:
        """The tasks for which every group of a task waits."""
        own, devices = task.duration, self.devices
        for number in task.after:
            other = issued[number].duration
            if len(other.devices) != devices and other is not own:
                waits = self._waits
                return tuple([n for n in task.after if waits[own, issued[n].duration]])
        return task.after


def _few_devices(
    issued: Sequence[Task], rest: Sequence[float], devices: int, limit: float
) -> float | None:
    """Seconds of a step as ``Clocks`` has them, device by device."""
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
    """Whether some device of each group of a task takes part in another task."""
    own, other = pair
    return not any(other.devices.isdisjoint(group) for group in own.groups.tolist())


def longest_ways(issued: Sequence[Task], after: Sequence[Sequence[int]]) -> list[float]:
    """For each task, what the longest way through tasks that end with it takes. ``after``: those
    that each task waits for."""
    ends: list[float] = []
    for task, before in zip(issued, after, strict=True):
        start = max([ends[number] for number in before]) if before else 0.0
        ends.append(start + task.duration.shortest)
    return ends


def _first(start: Times) -> float:
    """When the first group of a task starts."""
    if not isinstance(start, np.ndarray):
        return start
    return float(start.min()) if start.size else 0.0


def _rest(issued: Sequence[Task], after: Sequence[Sequence[int]]) -> list[float]:
    """For each task, what the longest way through tasks that begin with it takes."""
    rest = [0.0] * len(issued)
    for number in range(len(issued) - 1, -1, -1):
        own = rest[number] = rest[number] + issued[number].duration.shortest
        for other in after[number]:
            if rest[other] < own:
                rest[other] = own
    return rest
