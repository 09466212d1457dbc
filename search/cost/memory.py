"""Memory of a plan: bytes on its fullest device, by what takes them.

Weights, what the optimizer keeps of them, and the buffers in which several devices add gradients up
are there for the whole step; all other tensors come and go (``search.cost.liveness``). What counts
is the fullest device at its fullest time. Exact are the bytes of tensors that the runtime holds,
but for those of a single operator under way (``tests/distributed/test_peak.py``); workspaces of
kernels, what libraries of communication take for themselves, and what an allocator loses are left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Graph, Node
from pcg.placement.backward import gradients
from pcg.placement.layout import Layout
from pcg.placement.schedule import Schedule
from pcg.plan.training import Training
from pcg.readings.formats import held_wide
from search.cost.liveness import Life, is_shared, liveness

Bytes = NDArray[np.int64]


@dataclass(frozen=True)
class Memory:
    """Bytes on the device that holds most, when it holds most."""

    device: int
    parameters: int
    gradients: int
    """Of the parameters, and their buffers."""
    optimizer: int
    activations: int
    """What operators make and what is moved, data, and the gradients of these."""

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations


def peak_memory(schedule: Schedule, training: Training, remade: Collection[Node] = ()) -> Memory:
    """What training by a schedule takes, with the results of ``remade`` recomputed in the backward
    pass."""
    kinds = memory_by_device(schedule, training, remade)
    device = int(np.stack(kinds).sum(axis=0).argmax())
    return Memory(device, *(int(kind[device]) for kind in kinds))


def memory_by_device(
    schedule: Schedule, training: Training, remade: Collection[Node] = ()
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Bytes on each device when it holds most: the kinds that ``Memory`` has, in its order. The
    arguments are those of ``peak_memory``."""
    living = liveness(schedule, remade)
    layouts = [*schedule.homes.values(), *(life.layout for life in living.lifetimes)]
    devices = 1 + max((layout.devices[-1] for layout in layouts), default=0)
    parameters, grads, states = (np.zeros(devices, np.int64) for _ in range(3))
    trained = set(gradients(schedule).weights)
    for node, layout in schedule.homes.items():
        block = prod(layout.type.held)
        parameters[_devices(layout)] += block * training.parameter_bytes
        if node in trained:
            grads[_devices(layout)] += block * training.formats.wide * is_shared(layout)
            states[_devices(layout)] += block * training.state_bytes
    activations = _held(living.lifetimes, living.end, devices, itemsizes(schedule, training))
    growing = _held(living.gradients, living.end, devices, lambda _: training.formats.wide)
    at = (activations + growing).argmax(axis=0)
    every = np.arange(devices)
    return parameters, grads + growing[at, every], states, activations[at, every]


def itemsizes(schedule: Schedule, training: Training) -> Callable[[Life], int]:
    """Bytes an element of what lives for a while in a step."""
    formats = training.formats
    if not formats.is_mixed:
        return lambda _: formats.narrow
    wide = held_wide(Graph(tuple(slot.value for slot in schedule.outputs)))
    return lambda life: formats.wide if life.slot.value in wide else formats.narrow


def _held(
    lifetimes: Iterable[Life], end: int, devices: int, itemsize: Callable[[Life], int]
) -> Bytes:
    """Bytes [time, device] of what lives then."""
    change = np.zeros((end + 2, devices), np.int64)
    common = np.zeros((end + 2, 1), np.int64)
    for life in lifetimes:
        block = prod(life.layout.type.held) * itemsize(life)
        everywhere = len(life.layout.devices) == devices
        changed, which = (common, 0) if everywhere else (change, _devices(life.layout))
        changed[life.first, which] += block
        changed[life.last + 1, which] -= block
    return (change + common).cumsum(axis=0)


@lru_cache(maxsize=65536)
def _devices(layout: Layout) -> NDArray[np.intp]:
    return np.array(layout.devices, np.intp)
