"""Operator mappings: what an operator is cut along and on which devices, whatever the mesh.

A strategy says of every mesh axis what it cuts, so its devices are whole parts of a mesh: halves
and thirds of a node. A mapping says the same of any array of devices: 5 of 8, or the two last of 6.
It is a machine view before the operator is cut. Each strategy is a mapping; not each mapping is a
strategy of some mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from search.map.space.axes import Strategy

IDLE = -1
"""Along this mesh axis only one device takes part: the first, unless told otherwise."""


class MappedAxis(NamedTuple):
    """An axis of an array of devices. ``place``: what it cuts, as strategies say it: an axis of the
    operator's space, or REPLICATE."""

    place: int
    degree: int
    stride: int
    """How many devices lie between two neighbours."""


@dataclass(frozen=True)
class OperatorMapping:
    """An array of devices, from ``start`` on, slowest axis first; one device without axes."""

    start: int
    axes: tuple[MappedAxis, ...] = ()

    @staticmethod
    def packed(start: int, cuts: Iterable[tuple[int, int]]) -> OperatorMapping:
        """On devices in a row. ``cuts``: what is cut, and into how many, slowest first."""
        axes: list[MappedAxis] = []
        stride = 1
        for place, degree in reversed(tuple(cuts)):
            axes.append(MappedAxis(place, degree, stride))
            stride *= degree
        return OperatorMapping(start, tuple(reversed(axes)))

    @cached_property
    def size(self) -> int:
        """How many devices it has."""
        return prod(axis.degree for axis in self.axes)

    @cached_property
    def _hash(self) -> int:
        return hash((self.start, self.axes))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def places(self) -> tuple[int, ...]:
        """What is cut, each once, slowest first."""
        return tuple(dict.fromkeys(axis.place for axis in self.axes))

    def degree(self, place: int) -> int:
        """Into how many pieces something is cut."""
        return prod(axis.degree for axis in self.axes if axis.place == place)

    def moved(self, start: int) -> OperatorMapping:
        """The same array from another device on."""
        return OperatorMapping(start, self.axes)

    @property
    def last(self) -> int:
        """Its device of the highest number."""
        return self.start + sum((axis.degree - 1) * axis.stride for axis in self.axes)


@lru_cache(maxsize=1 << 16)
def mapping_of(
    strategy: Strategy, start: int, primes: Sequence[int], strides: Sequence[int]
) -> OperatorMapping:
    """A strategy on a mesh with axes of these lengths and strides, from a device on. Idle axes are
    none."""
    entries = zip(strategy, primes, strides, strict=True)
    return OperatorMapping(
        start, tuple(MappedAxis(at, prime, stride) for at, prime, stride in entries if at != IDLE)
    )
