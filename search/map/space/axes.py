"""The device mesh: its axes, and the cost of communication along some of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from pcg.machine import Machine
from pcg.memo import remembered
from search.cost.collectives import Lines, all_reduce, bucketed, padded, ring

Masks = NDArray[np.int64]
"""Sets of mesh axes: bit i stands for axis i."""
Seconds = NDArray[np.float64]
Strategy = tuple[int, ...]
"""A strategy of an operator. For each mesh axis: the place of the operator's axis that it cuts, or
an entry that says that it cuts none."""


@dataclass(frozen=True)
class Peers:
    """The links between devices that differ along some mesh axes.

    ``latency`` (seconds) and ``inverse_bandwidth`` (seconds a byte) are means over the peers of a
    device. ``ring`` and ``all_reduce`` are the costs of these collectives among all of them.
    """

    members: int
    latency: float
    inverse_bandwidth: float
    ring: Lines
    all_reduce: Lines


@dataclass
class Mesh:
    """The mesh of a machine's devices. ``primes``: the lengths of its axes, slowest axis first."""

    machine: Machine
    turned: bool = False
    """Whether the mesh axes within a node are in reverse order. Six devices are then 3 pairs
    instead of 2 sockets of 3. The groups along these axes are not all alike, and are priced as the
    first."""
    primes: tuple[int, ...] = field(init=False)
    strides: tuple[int, ...] = field(init=False)
    """For each mesh axis, the difference in device number of one step along it."""

    def __post_init__(self) -> None:
        primes = _primes(self.machine)
        self.primes = _turned(primes, self.machine) if self.turned else primes
        self.strides = tuple(prod(self.primes[i + 1 :]) for i in range(len(self.primes)))

    def __len__(self) -> int:
        return len(self.primes)

    @remembered
    def peers(self, mask: int) -> Peers:
        """The links of a group of devices that differ only along the mesh axes of a mask (bit i:
        axis i). All groups are alike; the group that is measured holds device 0."""
        return self._measured(self.group(mask))

    def gradient_seconds(self, masks: Masks, volume: Seconds) -> Seconds:
        """Seconds of the all_reduce of a weight's gradient, for each mask and volume. ``volume``:
        bytes on a device."""
        groups, inverse = self._each(masks)
        return bucketed(padded([pairs.all_reduce for pairs in groups])[inverse], volume)

    def _each(self, masks: Masks) -> tuple[list[Peers], NDArray[np.intp]]:
        """The groups of the different masks, each measured once, and for each mask its position
        among them."""
        known, inverse = np.unique(masks, return_inverse=True)
        return [self.peers(int(mask)) for mask in known], inverse.reshape(masks.shape)

    def group(self, mask: int) -> list[int]:
        """The devices that differ from device 0 only along the mesh axes of a mask."""
        free = [i for i in range(len(self)) if mask >> i & 1]
        ranges = [range(self.primes[i]) for i in free]
        return sorted(
            sum(value * self.strides[i] for i, value in zip(free, values, strict=True))
            for values in product(*ranges)
        )

    def _measured(self, group: list[int]) -> Peers:
        links = [self.machine.link(group[0], other) for other in group[1:]]
        hops = self.machine.hops(group)
        collectives = ring(hops), all_reduce(hops)
        if not links:
            return Peers(1, 0.0, 0.0, *collectives)
        latency = sum(link.latency for link in links) / len(links)
        inverse = sum(1 / link.bandwidth for link in links) / len(links)
        return Peers(len(group), latency, inverse, *collectives)


def _primes(machine: Machine) -> tuple[int, ...]:
    """The prime factors of the number of devices, level by level as far as whole units take
    part."""
    rest = machine.devices
    primes: list[int] = []
    for level in machine.levels[:-1]:
        if rest % level.count == 0:
            primes = [*_factors(level.count), *primes]
            rest //= level.count
        else:
            break
    return (*_factors(rest), *primes)


def _turned(primes: tuple[int, ...], machine: Machine) -> tuple[int, ...]:
    """The primes, those within a node in reverse order if whole nodes take part."""
    inside = min(machine.devices_per_node, machine.devices)
    for first in range(len(primes)):
        if prod(primes[first:]) == inside:
            return primes[:first] + primes[first:][::-1]
    return primes


def _factors(number: int) -> list[int]:
    primes: list[int] = []
    prime = 2
    while number > 1:
        while number % prime == 0:
            primes.append(prime)
            number //= prime
        prime += 1
    return primes
