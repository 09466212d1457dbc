"""Operator mappings: the cuts of an operator and its devices, on any array of devices.

A strategy gives an entry to every mesh axis, so its devices are whole parts of a mesh, such as
halves or thirds of a node. A mapping does the same for any array of devices, such as 5 of 8, or the
last two of 6. It is the machine view of an operator before the operator is cut. Each strategy is a
mapping. Not each mapping is a strategy of some mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from search.map.space.axes import Strategy

IDLE = -1
"""Along this mesh axis only one device takes part. It is the first unless stated otherwise."""


class MappedAxis(NamedTuple):
    """An axis of an array of devices. ``place``: the place, in the operator's space, of the axis
    that it cuts; or REPLICATE."""

    place: int
    degree: int
    stride: int
    """The difference in number between neighbouring devices along this axis."""


@dataclass(frozen=True)
class OperatorMapping:
    """An array of devices that begins at ``start``, slowest axis first. Without axes it is one
    device."""

    start: int
    axes: tuple[MappedAxis, ...] = ()

    @staticmethod
    def packed(start: int, cuts: Iterable[tuple[int, int]]) -> OperatorMapping:
        """A mapping on consecutive devices. ``cuts``: pairs of place and degree, slowest first."""
        axes: list[MappedAxis] = []
        stride = 1
        for place, degree in reversed(tuple(cuts)):
            axes.append(MappedAxis(place, degree, stride))
            stride *= degree
        return OperatorMapping(start, tuple(reversed(axes)))

    @cached_property
    def size(self) -> int:
        """The number of devices."""
        return prod(axis.degree for axis in self.axes)

    @cached_property
    def _hash(self) -> int:
        return hash((self.start, self.axes))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The places that are cut, each once, slowest first."""
        return tuple(dict.fromkeys(axis.place for axis in self.axes))

    @cached_property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """The place and degree of each axis. They say how the operator is cut, on any devices."""
        return tuple((axis.place, axis.degree) for axis in self.axes)

    def moved(self, start: int) -> OperatorMapping:
        """The same array, beginning at another device."""
        return OperatorMapping(start, self.axes)

    @property
    def last(self) -> int:
        """The highest device number."""
        return self.start + sum((axis.degree - 1) * axis.stride for axis in self.axes)


@lru_cache(maxsize=1 << 16)
def mapping_of(
    strategy: Strategy, start: int, primes: Sequence[int], strides: Sequence[int]
) -> OperatorMapping:
    """The mapping of a strategy that begins at a device, on a mesh with axes of the given lengths
    and strides. Idle mesh axes are left out."""
    entries = zip(strategy, primes, strides, strict=True)
    return OperatorMapping(
        start, tuple(MappedAxis(at, prime, stride) for at, prime, stride in entries if at != IDLE)
    )
