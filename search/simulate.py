"""The time of one training step: a clock for each device, moved on by every step of a schedule.

A step starts when the last of its devices has finished what comes before, so branches on disjoint
devices run at the same time. Communication doesn't overlap with computation on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcg.schedule import Compute, Move, Schedule
from search.cost import NOTHING, CostModel, Duration, gradients


@dataclass(frozen=True)
class Simulation:
    """When the last device has finished each phase, in seconds."""

    step_seconds: float
    """A whole training step; the sum of its phases."""
    forward: float
    backward: float
    sync: float
    """The all_reduce of the weights' gradients."""
    update: float


@dataclass(frozen=True)
class Program:
    """A schedule as durations."""

    steps: Sequence[tuple[Duration, Duration]]
    """Forward and backward of every step, in the order of forward."""
    weights: Sequence[tuple[Duration, Duration]]
    """All_reduce and update of every weight that has a gradient, in the order of forward."""


class Clocks:
    """How long each device has been busy."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        # While all clocks agree, one number stands for them: steps on all devices are common.
        self._all = 0.0
        self._each: NDArray[np.float64] | None = None

    def advance(self, duration: Duration) -> None:
        """Let every group of devices wait for its last member, and work."""
        if duration is NOTHING:
            return
        if self._each is None:
            if duration.even == self._devices:
                self._all += duration.longest
                return
            self._each = np.full(self._devices, self._all)
        if duration.even == self._devices and len(duration.groups) == 1:
            self._all, self._each = float(self._each.max()) + duration.longest, None
        else:
            end = self._each[duration.groups].max(axis=1) + duration.seconds
            self._each[duration.groups] = end[:, None]

    @property
    def latest(self) -> float:
        return self._all if self._each is None else float(self._each.max())


def simulate(schedule: Schedule, cost: CostModel) -> Simulation:
    """Price a schedule: forward, backward, exchange of the weights' gradients, update."""
    passed = gradients(schedule)
    steps: list[tuple[Duration, Duration]] = []
    for step, needs in zip(schedule.steps, passed.steps, strict=True):
        match step:
            case Compute(node, view):
                forward, backward = cost.computation(node, needs or frozenset(), view)
                steps.append((forward, NOTHING if needs is None else backward))
            case Move():
                moved = cost.movement(step.transfer)
                steps.append((moved, NOTHING if needs is None else moved))
            case _:
                pass
    weights = [cost.weight(schedule.homes[node]) for node in passed.weights]
    return run(Program(steps, weights), cost.machine.devices)


def run(program: Program, devices: int) -> Simulation:
    """Run forward, backward (the steps in reverse), gradient exchange and update on clocks."""
    clocks = Clocks(devices)
    for duration, _ in program.steps:
        clocks.advance(duration)
    forward = clocks.latest
    for _, duration in reversed(program.steps):
        clocks.advance(duration)
    backward = clocks.latest
    for sync, _ in reversed(program.weights):
        clocks.advance(sync)
    synced = clocks.latest
    for _, update in reversed(program.weights):
        clocks.advance(update)
    end = clocks.latest
    return Simulation(end, forward, backward - forward, synced - backward, end - synced)
