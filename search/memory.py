"""How much memory a plan takes on each device, and what it is taken by.

Weights, their gradients and what the optimizer keeps of them are there for the whole step; all
other tensors come and go (``search.lives``). What counts is the fullest device at its fullest time.
Workspaces of kernels and buffers of communication are left out, and so is what an allocator loses.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from pcg.graph import Node
from pcg.layout import Layout
from pcg.schedule import Schedule
from pcg.training import STATE_BYTES, STATES, Optimizer
from search.cost import gradients
from search.lives import lives

Bytes = NDArray[np.int64]


@dataclass(frozen=True)
class Memory:
    """Bytes on the device that holds most, when it holds most."""

    device: int
    parameters: int
    gradients: int
    """Of the parameters."""
    optimizer: int
    activations: int
    """What operators make and what is moved, data, and the gradients of these."""

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations


def peak_memory(
    schedule: Schedule,
    itemsize: int,
    optimizer: Optimizer = "sgd",
    remade: Collection[Node] = (),
) -> Memory:
    """What training by a schedule takes, with the results of ``remade`` computed again on the way
    back. ``itemsize``: bytes an element."""
    found = lives(schedule, remade)
    layouts = [*schedule.homes.values(), *(life.layout for life in found.lives)]
    devices = 1 + max((layout.devices[-1] for layout in layouts), default=0)
    parameters, grads, states = (np.zeros(devices, np.int64) for _ in range(3))
    trained = set(gradients(schedule).weights)
    for node, layout in schedule.homes.items():
        block = prod(layout.type.held)
        parameters[_devices(layout)] += block * itemsize
        if node in trained:
            grads[_devices(layout)] += block * itemsize
            states[_devices(layout)] += block * STATES[optimizer] * STATE_BYTES
    change = np.zeros((found.end + 2, devices), np.int64)
    common = np.zeros((found.end + 2, 1), np.int64)
    for life in found.lives:
        block = prod(life.layout.type.held) * itemsize
        everywhere = len(life.layout.devices) == devices
        changed, which = (common, 0) if everywhere else (change, _devices(life.layout))
        changed[life.first, which] += block
        changed[life.last + 1, which] -= block
    activations = (change + common).cumsum(axis=0).max(axis=0)
    device = int((parameters + grads + states + activations).argmax())
    kinds = (parameters, grads, states, activations)
    return Memory(device, *(int(kind[device]) for kind in kinds))


@lru_cache(maxsize=65536)
def _devices(layout: Layout) -> NDArray[np.intp]:
    return np.array(layout.devices, np.intp)
