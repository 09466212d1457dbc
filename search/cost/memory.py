"""Memory of a plan: bytes on its fullest device, by what takes them.

Weights, optimizer states, and the buckets in which several devices add up gradients are held for
the whole step. All other tensors come and go (``search.cost.liveness``). The result is that of the
fullest device at its fullest time. Exact are the bytes of the tensors that the runtime holds,
except those of a single operator while it runs (``tests/distributed/test_peak.py``). Workspaces of
kernels, buffers of communication libraries, and losses of the allocator are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Graph, Node
from pcg.placement.backward import gradients
from pcg.placement.layout import Layout
from pcg.placement.schedule import LeafAtHome, Schedule
from pcg.plan.training import Training
from pcg.readings.formats import held_wide
from search.cost.liveness import Lifetime, is_shared, liveness
from search.cost.unroll import ONCE, BlockWindow, Repeated, unrolled_changes, window_of

Bytes = NDArray[np.int64]


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest device at its fullest time, by kind."""

    device: int
    parameters: int
    gradients: int
    """Gradients of parameters, and their buckets."""
    optimizer: int
    activations: int
    """Results of operators, tensors that are moved, data, and the gradients of these."""

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations


def peak_memory(
    schedule: Schedule,
    training: Training,
    remade: Collection[Node] = (),
    repeated: Repeated = ONCE,
) -> Memory:
    """The peak memory of training by a schedule, with the results of ``remade`` recomputed in the
    backward pass. ``repeated``: how often its middle block occurs in the whole. Raises NotAlike if
    that block is not one of several equal ones."""
    kinds = memory_by_device(schedule, training, remade, repeated)
    device = int(np.stack(kinds).sum(axis=0).argmax())
    return Memory(device, *(int(kind[device]) for kind in kinds))


def memory_by_device(
    schedule: Schedule,
    training: Training,
    remade: Collection[Node] = (),
    repeated: Repeated = ONCE,
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Bytes on each device at its fullest time, by the kinds of ``Memory``, in its order. The
    arguments are those of ``peak_memory``."""
    living = liveness(schedule, remade)
    layouts = [*schedule.homes.values(), *(life.layout for life in living.lifetimes)]
    devices = 1 + max((layout.devices[-1] for layout in layouts), default=0)
    parameters, grads, states = (np.zeros(devices, np.int64) for _ in range(3))
    trained = set(gradients(schedule).weights)
    window = window_of(schedule, repeated)
    often = _repeated_weights(schedule, window)
    for node, layout in schedule.homes.items():
        block = prod(layout.type.held) * often.get(node, 1)
        parameters[_devices(layout)] += block * training.parameter_bytes
        if node in trained:
            grads[_devices(layout)] += block * training.formats.wide * is_shared(layout)
            states[_devices(layout)] += block * training.state_bytes
    made = _HeldBytes.of(living.lifetimes, living.end, window, itemsizes(schedule, training))
    grown = _HeldBytes.of(living.gradients, living.end, window, lambda _: training.formats.wide)
    activations, growing = _at_fullest(made, grown, devices)
    return parameters, grads + growing, states, activations


def _repeated_weights(schedule: Schedule, window: BlockWindow | None) -> dict[Node, int]:
    """How often each weight of the repeated block counts."""
    if window is None:
        return {}
    loads = schedule.steps[window.first : window.stop]
    return {step.slot.value.node: 1 + window.more for step in loads if isinstance(step, LeafAtHome)}


def itemsizes(schedule: Schedule, training: Training) -> Callable[[Lifetime], int]:
    """The bytes of an element of each tensor that comes and goes in a step."""
    formats = training.formats
    if not formats.is_mixed:
        return lambda life: life.itemsize or formats.narrow
    wide = held_wide(Graph(tuple(slot.value for slot in schedule.outputs)))

    def itemsize(life: Lifetime) -> int:
        return life.itemsize or (formats.wide if life.slot.value in wide else formats.narrow)

    return itemsize


def _at_fullest(made: _HeldBytes, grown: _HeldBytes, devices: int) -> tuple[Bytes, Bytes]:
    """Bytes of both kinds on each device at the first time when their sum is largest. Devices that
    are in the same sets hold the same at any time, and are computed once."""
    inside = made.within(devices), grown.within(devices)
    alike, which = np.unique(np.concatenate(inside), axis=1, return_inverse=True)
    first, second = np.split(alike.astype(np.int64), [len(made.sets)])
    activations, growing = made.bytes @ first, grown.bytes @ second
    at = (activations + growing).argmax(axis=0), np.arange(alike.shape[1])
    return activations[at][which.ravel()], growing[at][which.ravel()]


@dataclass(frozen=True)
class _HeldBytes:
    """[time, sets]: the bytes that each device of a set holds at a time because it is in the
    set."""

    bytes: Bytes
    sets: Sequence[tuple[int, ...]]

    @staticmethod
    def of(
        lifetimes: Iterable[Lifetime],
        end: int,
        window: BlockWindow | None,
        itemsize: Callable[[Lifetime], int],
    ) -> _HeldBytes:
        """Sum up tensors by the set of their devices, of which there are few. ``window``: the block
        that repeats."""
        changes: dict[tuple[int, ...], Bytes] = {}
        for life in lifetimes:
            block = prod(life.layout.type.held) * itemsize(life)
            change = changes.get(life.layout.devices)
            if change is None:
                change = changes[life.layout.devices] = np.zeros(end + 2, np.int64)
            change[life.first] += block
            change[life.last + 1] -= block
        every = [np.zeros(end + 2, np.int64), *changes.values()]
        whole = unrolled_changes(np.stack(every, axis=1), window, end)
        return _HeldBytes(whole.cumsum(axis=0), [(), *changes])

    def within(self, devices: int) -> NDArray[np.bool_]:
        """[sets, devices]: whether a device is in a set."""
        inside = np.zeros((len(self.sets), devices), bool)
        for row, devices_of_set in zip(inside, self.sets, strict=True):
            row[list(devices_of_set)] = True
        return inside


@lru_cache(maxsize=65536)
def _devices(layout: Layout) -> NDArray[np.intp]:
    return np.array(layout.devices, np.intp)
