"""Event-driven simulation of a training step: when each of its tasks (``tasks``) runs.

A task starts when all tasks that it depends on are done and the streams of all its devices are
free, in the order of issue. So communication overlaps with computation as far as neither waits for
the other: the exchange of a weight's gradient with the rest of the backward pass, and the
resharding of one branch with computations of another. It is left out that both slow each other down
if they share the memory of a device or a link.

After a change of a program, the simulation begins at the first task that differs. The times of
earlier tasks are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node
from pcg.placement.recomputation import recomputed_steps
from pcg.placement.saved import saved_tensors
from pcg.placement.schedule import Schedule
from search.cost.cost import CostModel
from search.cost.progress import check_time
from search.cost.tasks import (
    BACKWARD,
    COMMUNICATE,
    COMPUTE,
    FORWARD,
    PHASES,
    RECOMPUTE,
    SYNC,
    UPDATE,
    Task,
    TaskProgram,
    program,
    tasks,
)
from search.cost.unroll import ONCE, Repeated, unrolled

Times = float | NDArray[np.float64]
"""Seconds by device; or one number if it is the same for all devices."""
SNAPSHOT = 32
"""The number of tasks between two states that are kept to continue from."""


@dataclass(frozen=True)
class Simulation:
    """The seconds of each phase, up to the time when the last device has finished it."""

    step_seconds: float
    """Seconds of a whole training step: the sum of its phases."""
    forward: float
    backward: float
    sync: float
    """The rest of the exchange of weights' gradients after the backward pass."""
    update: float


@dataclass(frozen=True)
class _State:
    """The clocks of the streams and the ends of the phases, after some tasks."""

    clocks: tuple[Times, ...]
    ends: tuple[float, ...]


@dataclass(frozen=True)
class TimedTasks:
    """Tasks with their times."""

    tasks: Sequence[Task]
    starts: Sequence[Times]
    """For each task, the start of each group, or one number for all groups."""
    ready: Sequence[Times]
    """For each task, the time at which each device has its result."""
    states: Sequence[_State]
    """The states before every ``SNAPSHOT``-th task, and after the last."""

    @property
    def simulation(self) -> Simulation:
        ends = self.states[-1].ends
        forward = ends[FORWARD]
        # A recomputation may end last if nothing waits for it.
        backward = max(forward, ends[BACKWARD], ends[RECOMPUTE])
        synced = max(backward, ends[SYNC])
        end = max(synced, ends[UPDATE])
        return Simulation(end, forward, backward - forward, synced - backward, end - synced)


def simulate(schedule: Schedule, cost: CostModel, *, overlap: bool = True) -> Simulation:
    """Simulate a schedule."""
    issued = tasks(program(schedule, cost), overlap=overlap)
    return run(issued, cost.machine.devices).simulation


def recomputing(
    schedule: Schedule, cost: CostModel, remade: Collection[Node], repeated: Repeated = ONCE
) -> TimedTasks:
    """Simulate a schedule in which the results of ``remade`` are recomputed in the backward pass.
    ``repeated``: how often its middle block occurs in the whole. Raises NotAlike if that block is
    not one of several equal ones."""
    before = recomputed_steps(saved_tensors(schedule), remade).before
    whole = unrolled(schedule, cost, repeated, before).program
    return run(tasks(whole, overlap=cost.overlaps), cost.machine.devices)


def price(given: TaskProgram, devices: int, *, overlap: bool = True) -> Simulation:
    """Simulate a program."""
    return run(tasks(given, overlap=overlap), devices).simulation


def run(issued: Sequence[Task], devices: int, before: TimedTasks | None = None) -> TimedTasks:
    """Run tasks in the order of issue.

    ``before``: an earlier run on the same devices. The times of the first tasks are taken from it,
    as far as both runs have the same tasks. The result is the same as without it.
    """
    start, kept = 0, before.tasks if before is not None else ()
    for task, other in zip(issued, kept, strict=False):
        if task is not other and task != other:
            break
        start += 1
    start -= start % SNAPSHOT
    clocks = Clocks(devices)
    if before is not None and start:
        first = start // SNAPSHOT
        clocks.starts, clocks.ready = list(before.starts[:start]), list(before.ready[:start])
        clocks.states = list(before.states[:first])
        clocks.restore(before.states[first])
    for number in range(start, len(issued)):
        if number % SNAPSHOT == 0:
            check_time()
            clocks.keep()
        clocks.advance(issued[number])
    clocks.keep()
    return TimedTasks(issued, clocks.starts, clocks.ready, clocks.states)


def busy(made: TimedTasks, phase: int) -> float:
    """The longest time for which a device works on the tasks of a phase, in seconds."""
    durations = [task.duration for task in made.tasks if task.phase == phase]
    total = np.zeros(1 + max((int(d.groups.max(initial=0)) for d in durations), default=0))
    for duration in durations:
        total[duration.groups] += duration.seconds[:, None]
    return float(total.max())


class Clocks:
    """The times at which the streams of each device become free, and at which results are ready."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        # One number stands for all devices as long as they agree: most steps involve all devices.
        self._streams: list[Times] = [0.0, 0.0]
        self._ends = [0.0] * len(PHASES)
        self.starts: list[Times] = []
        self.ready: list[Times] = []
        self.states: list[_State] = []

    def keep(self) -> None:
        """Keep the state. Arrays are never changed in place, so none is copied."""
        self.states.append(_State(tuple(self._streams), tuple(self._ends)))

    def restore(self, state: _State) -> None:
        """Return to a state."""
        self._streams, self._ends = list(state.clocks), list(state.ends)

    @property
    def last(self) -> float:
        """The time at which the last device has finished all tasks so far."""
        return max(self._ends)

    def advance(self, task: Task) -> None:
        """Run a task: each group of devices waits for its last member and the task's inputs."""
        duration, groups = task.duration, task.duration.groups
        inputs = [self.ready[number] for number in task.after]
        clock = self._streams[task.stream]
        start = _latest([_at(times, groups) for times in (clock, *inputs)])
        end, ready = self._done(task, clock, start, inputs)
        if isinstance(start, np.ndarray):
            last = float((start + duration.seconds).max(initial=0.0))
        else:
            last = start + duration.longest
        self._streams[task.stream] = end
        self._ends[task.phase] = max(self._ends[task.phase], last)
        self.starts.append(start)
        self.ready.append(ready)

    def _done(
        self, task: Task, clock: Times, start: Times, inputs: Sequence[Times]
    ) -> tuple[Times, Times]:
        """The clock of the stream after a task, and the time at which each device has its
        result."""
        groups, seconds = task.duration.groups, task.duration.seconds
        everywhere = groups.size == self._devices
        if not isinstance(start, np.ndarray) and task.duration.even == self._devices:
            end = start + task.duration.longest
            return end, end
        each = start + seconds
        if everywhere:
            end = float(each[0]) if len(each) == 1 else self._with(0.0, groups, each)
            return end, end
        others = _latest([0.0, *inputs]) if task.passes else 0.0
        return self._with(clock, groups, each), self._with(others, groups, each)

    def _with(
        self, times: Times, groups: NDArray[np.intp], each: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The times, with those of the groups replaced."""
        changed = times.copy() if isinstance(times, np.ndarray) else np.full(self._devices, times)
        changed[groups] = each[:, None]
        return changed


def _at(times: Times, groups: NDArray[np.intp]) -> Times:
    """The time at which the last device of each group is ready."""
    return times[groups].max(axis=1, initial=0.0) if isinstance(times, np.ndarray) else times


def _latest(times: Sequence[Times]) -> Times:
    latest = times[0]
    for other in times[1:]:
        if isinstance(latest, np.ndarray) or isinstance(other, np.ndarray):
            latest = np.maximum(latest, other)
        else:
            latest = max(latest, other)
    return latest


__all__ = [
    "COMMUNICATE",
    "COMPUTE",
    "Clocks",
    "Simulation",
    "TimedTasks",
    "price",
    "run",
    "simulate",
]
