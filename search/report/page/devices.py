"""The devices of a plan in classes: devices of one class do the same.

They take part in the same operators and hold as many bytes of each kind. The time use of a class is
that of its first device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pcg.graph.graph import Node
from search.cost.cost import CostModel
from search.cost.events import Usage
from search.cost.memory import Memory, memory_by_device
from search.cost.tasks import COMPUTE
from search.pipeline.built.price import held_by_device
from search.report.spending import timed
from search.report.trace import SimulatedPlan


@dataclass(frozen=True)
class DeviceClass:
    """Devices that do the same: the time use and memory of the first, and the stage of the
    pipeline, if there is one."""

    devices: tuple[int, ...]
    usage: Usage
    memory: Memory
    stage: int | None

    @property
    def first(self) -> int:
        return self.devices[0]


@dataclass(frozen=True)
class Devices:
    """The classes of all devices, in the order of their first device. ``numbers``: the class of
    each device; ``of``: the classes on which each operator runs."""

    classes: tuple[DeviceClass, ...]
    numbers: tuple[int, ...]
    of: Mapping[Node, tuple[int, ...]]


def devices_of(simulated: SimulatedPlan, cost: CostModel) -> Devices:
    """The classes of a simulated plan's devices. ``cost``: of the whole machine."""
    plan, count = simulated.plan, simulated.machine.devices
    operators = plan.graph.computing
    parts = np.zeros((count, len(operators)), bool)
    for number, node in enumerate(operators):
        parts[list(plan.views[node].devices), number] = True
    held = _held(simulated, cost)
    numbers: dict[tuple[bytes, bytes], list[int]] = {}
    for device in range(count):
        key = np.packbits(parts[device]).tobytes(), held[:, device].tobytes()
        numbers.setdefault(key, []).append(device)
    classes = tuple(_class(simulated, members, held) for members in numbers.values())
    number = {
        device: i for i, device_class in enumerate(classes) for device in device_class.devices
    }
    firsts = [device_class.first for device_class in classes]
    of = {
        node: tuple(np.flatnonzero(parts[firsts, at]).tolist()) for at, node in enumerate(operators)
    }
    return Devices(classes, tuple(number[device] for device in range(count)), of)


def _class(simulated: SimulatedPlan, members: Sequence[int], held: np.ndarray) -> DeviceClass:
    first = members[0]
    size = None if simulated.pipeline is None else simulated.pipeline.groups.size
    kinds = (int(number) for number in held[:, first])
    return DeviceClass(
        tuple(members),
        usage_of(simulated, first),
        Memory(first, *kinds),
        None if size is None else first // size,
    )


def usage_of(simulated: SimulatedPlan, device: int) -> Usage:
    """How a device spends the step."""
    computing = communicating = exposed = 0.0
    for event, open_seconds in timed(simulated.events(device)):
        if event.task.stream == COMPUTE:
            computing += event.seconds
        else:
            communicating += event.seconds
            exposed += open_seconds
    return Usage(device, computing, communicating, communicating - exposed)


def _held(simulated: SimulatedPlan, cost: CostModel) -> np.ndarray:
    """[kinds of memory, devices]: bytes on each device, 0 on a device that the plan does not
    use."""
    plan, steps, run = simulated.plan, simulated.steps, simulated.pipeline
    if run is not None:
        schedule = run.pipeline.schedule
        kinds = held_by_device(steps, cost, run.groups, schedule, plan.recompute)
    else:
        kinds = memory_by_device(steps, plan.training, plan.recompute)
    held = np.zeros((len(kinds), simulated.machine.devices), np.int64)
    held[:, : len(kinds[0])] = np.stack(kinds)
    return held
