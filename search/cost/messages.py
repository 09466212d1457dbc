"""The time that devices spend with the messages of a transfer.

All senders and receivers start together. A device sends its messages over the links of each level
one after the other, and receives at the same time. As in a ring, each message adds the latency of
its link. All elements that go from one device to another are one message.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pcg.machine import Link, Machine
from pcg.memo import remembered
from pcg.placement.transfer import Transfer

if TYPE_CHECKING:
    from search.cost.native.messages import FewMessages

FEW_DEVICES = 32
"""The most devices for which bytes are counted in a table of all pairs of devices
(``search.cost.native.messages``)."""


class Messages:
    """The times of messages on a machine. ``itemsize``: bytes of an element."""

    def __init__(self, machine: Machine, itemsize: int) -> None:
        self._machine, self._itemsize = machine, itemsize

    def busy(self, transfer: Transfer) -> NDArray[np.float64]:
        """Seconds for which each device sends or receives [devices]."""
        return self._busy_many(transfer) if self.few is None else self.few.busy(transfer)

    def _busy_many(self, transfer: Transfer) -> NDArray[np.float64]:
        devices = self._machine.devices
        ways: dict[int, tuple[Link, NDArray[np.float64]]] = {}
        for flows in transfer.flows_in_parts:
            crossing = flows.sources != flows.targets
            ends = flows.sources[crossing] * devices + flows.targets[crossing]
            ends, which = np.unique(ends, return_inverse=True)
            pairs = np.stack(np.divmod(ends, devices), axis=1)
            volume = np.bincount(which, flows.elements[crossing] * self._itemsize)
            levels = self._machine.meeting_levels(pairs[:, 0], pairs[:, 1])
            for level in np.unique(levels).tolist():
                there = levels == level
                if level not in ways:
                    link = self._link(tuple(sorted(pairs[there.argmax()].tolist())))
                    ways[level] = link, np.zeros((2, devices))
                link, way = ways[level]
                for spent, own in zip(way, pairs[there].T, strict=True):
                    spent += np.bincount(own, minlength=devices) * link.latency
                    spent += np.bincount(own, volume[there], devices) / link.bandwidth
        return sum((way.max(axis=0) for _, way in ways.values()), np.zeros(devices))

    @cached_property
    def few(self) -> FewMessages | None:
        """The times of messages between few devices; None for many."""
        if self._machine.devices > FEW_DEVICES:
            return None
        # numba takes long to load, and many commands never price a message.
        from search.cost.native.messages import FewMessages

        return FewMessages(self._machine, self._itemsize)

    @remembered
    def _link(self, devices: tuple[int, ...]) -> Link:
        return self._machine.group_link(devices)
