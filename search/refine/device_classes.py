"""Devices that are busy alike: one of them stands for all in a simulation.

Problem: a simulation of a plan on 1,024 devices looks at each of them, for each task. In most plans
many devices do the same at the same time.

Method: partition refinement (Paige and Tarjan, SIAM J. Comput. 1987, section 3), here without its
"smaller half". Devices are told apart by the durations in which they take part: by the seconds of
their group there, and by the classes of its members. This is repeated until no class is parted. By
induction over tasks, all devices of a class are then free at the same time, in any order of tasks.
So a simulation of classes gives the same seconds, to the last bit.

Complexity: durations with other groups of devices, times devices, for each time that a class is
parted. Exact. The classes are the coarsest that hold for all durations so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from search.cost.cost import Duration
from search.refine.native.tables import Durations, Numbers
from search.refine.rows import DurationRows

_FIRST = 2
"""The first row that is not one of the two that all tables begin with (``DurationRows``)."""


class _Groups(NamedTuple):
    """Groups of devices that are busy together [groups, members], and the number of each group's
    seconds among the different ones [groups]. Many durations have the same."""

    devices: Numbers
    seconds: Numbers

    @staticmethod
    def of(duration: Duration) -> _Groups:
        _, seconds = np.unique(duration.seconds, return_inverse=True)
        return _Groups(duration.groups, seconds)

    @property
    def key(self) -> object:
        return self.devices.shape, self.devices.tobytes(), self.seconds.tobytes()


class _Listed(NamedTuple):
    """Groups of devices by class."""

    kept: Numbers
    """The first group of each kind."""
    classes: Numbers
    """[kept, members]: the classes of their members. A class may be listed more than once in a
    group, next to itself: groups are of one size, and those of several devices communicate."""


@dataclass(eq=False)
class DeviceClasses:
    """The durations of a table, by classes of devices. ``rows``: of ``devices`` devices."""

    rows: DurationRows
    devices: int
    _of: Numbers = field(init=False)
    """The class of each device."""
    _different: dict[object, _Groups] = field(init=False, default_factory=dict[object, _Groups])
    """The groups of all durations so far."""
    _listed: dict[object, _Listed] = field(init=False, default_factory=dict[object, _Listed])
    """The same by class, as the classes are now."""
    _made: DurationRows = field(init=False)
    _done: int = field(init=False, default=_FIRST)
    """The durations that are in ``_made``."""

    def __post_init__(self) -> None:
        self._of = np.zeros(self.devices, np.int64)
        self._made = DurationRows(1)

    @property
    def count(self) -> int:
        """The number of classes."""
        return int(self._of.max()) + 1

    def table(self) -> Durations:
        """The durations as they are now, with classes in place of devices."""
        new = self._from(self._done)
        others = sum(self._is_other(_Groups.of(duration)) for duration in new)
        if others and self._parts():
            self._listed.clear()
            self._made, new = DurationRows(self.count), self._from(_FIRST)
        for duration in new:
            self._made.row[self._by_class(duration)]
        self._done = self.rows.count
        return self._made.table()

    def _from(self, first: int) -> list[Duration]:
        """The durations from a row on."""
        return [self.rows.duration[row] for row in range(first, self.rows.count)]

    def _is_other(self, groups: _Groups) -> bool:
        """Whether groups differ from all before. They are noted."""
        is_other = len(groups.devices) > 0 and groups.key not in self._different
        if is_other:
            self._different[groups.key] = groups
        return is_other

    def _parts(self) -> bool:
        """Part classes until the devices of each are busy alike. Whether any was parted."""
        first, before = self.count, 0
        while before < self.count:
            before = self.count
            for groups in self._different.values():
                _, alike = self._alike(groups)
                told_apart = np.zeros(self.devices, np.int64)
                told_apart[groups.devices] = 1 + alike[:, None]
                pairs = self._of * (len(alike) + 1) + told_apart
                _, self._of = np.unique(pairs, return_inverse=True)
        return self.count > first

    def _alike(self, groups: _Groups) -> tuple[Numbers, Numbers]:
        """The first of the groups whose members are of the same classes and which take the same
        seconds, for each kind of group; and the kind of each group."""
        members = np.sort(self._of[groups.devices], axis=1)
        rows = np.column_stack((groups.seconds, members))
        _, first, alike = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return first, alike.reshape(-1)

    def _by_class(self, duration: Duration) -> Duration:
        """A duration with one group of each kind, and classes in place of devices."""
        groups = _Groups.of(duration)
        if not len(groups.devices):
            return Duration(duration.groups, duration.seconds)
        listed = self._listed.get(groups.key)
        if listed is None:
            listed = self._listed[groups.key] = self._list(groups)
        return Duration(listed.classes, duration.seconds[listed.kept])

    def _list(self, groups: _Groups) -> _Listed:
        first, _ = self._alike(groups)
        kept = np.sort(first)
        members = [np.unique(group) for group in self._of[groups.devices[kept]]]
        width = max(min(2, groups.devices.shape[1]), *map(len, members))
        classes = [np.pad(own, (0, width - len(own)), mode="edge") for own in members]
        return _Listed(kept, np.array(classes))
