"""The timeline of a device: events of a simulated step, and the communication that is hidden."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from search.cost.cost import Duration
from search.cost.simulate import TimedTasks
from search.cost.tasks import COMMUNICATE, COMPUTE, Task


@dataclass(frozen=True)
class Event:
    """The part of a device in a task, in seconds from the start of the step."""

    task: Task
    start: float
    seconds: float
    batch: int | None = None
    """The number of the micro-batch, in a pipeline."""

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True)
class Usage:
    """The time use of a device in a step, in seconds."""

    device: int
    computing: float
    communicating: float
    hidden: float
    """Communication during which the device computes."""

    @property
    def exposed(self) -> float:
        """Communication during which it does not compute."""
        return self.communicating - self.hidden

    @property
    def busy(self) -> float:
        """The time in which it computes or communicates."""
        return self.computing + self.exposed


def events(run: TimedTasks, device: int) -> Iterator[Event]:
    """The events of a device, in the order of issue."""
    for task, start in zip(run.tasks, run.starts, strict=True):
        group = group_of(task.duration, device)
        if group is not None:
            begin = float(start[group]) if isinstance(start, np.ndarray) else start
            yield Event(task, begin, float(task.duration.seconds[group]))


def usage(run: TimedTasks, device: int) -> Usage:
    """The time use of a device in a step."""
    streams: tuple[list[Event], list[Event]] = ([], [])
    for event in events(run, device):
        streams[event.task.stream].append(event)
    computing, communicating = (sum(e.seconds for e in stream) for stream in streams)
    hidden = sum(overlaps(streams[COMMUNICATE], streams[COMPUTE]))
    return Usage(device, computing, communicating, hidden)


def overlaps(these: Sequence[Event], others: Sequence[Event]) -> list[float]:
    """For each of some events, the time during which ``others`` run too. Both lists are in order,
    and the events of each list do not overlap among themselves."""
    overlapping: list[float] = []
    first = 0
    for event in these:
        while first < len(others) and others[first].end <= event.start:
            first += 1
        total, at = 0.0, first
        while at < len(others) and others[at].start < event.end:
            total += min(event.end, others[at].end) - max(event.start, others[at].start)
            at += 1
        overlapping.append(total)
    return overlapping


def exposures(run: TimedTasks, device: int, phase: int) -> dict[int, float]:
    """The fraction of each communication of a phase that is not hidden behind computation of a
    device, by ``Task.what``."""
    of_device = list(events(run, device))
    sent = [e for e in of_device if e.task.stream == COMMUNICATE and e.task.phase == phase]
    hidden = overlaps(sent, [e for e in of_device if e.task.stream == COMPUTE])
    return {
        event.task.what: 1.0 - part / event.seconds
        for event, part in zip(sent, hidden, strict=True)
        if event.seconds > 0
    }


@lru_cache(maxsize=65536)
def group_of(duration: Duration, device: int) -> int | None:
    """The number of the group that holds a device, or None."""
    groups = np.flatnonzero((duration.groups == device).any(axis=1))
    return int(groups[0]) if len(groups) else None


def busiest(run: TimedTasks, devices: Iterable[int]) -> Usage:
    """The time use of the busiest device, the first if there are several."""
    return max((usage(run, device) for device in devices), key=lambda used: used.busy)
