"""The time of the messages of a transfer between few devices, in machine code.

It is that of ``search.cost.messages`` to the last bit: the bytes are whole numbers, whose sums do
not depend on their order. The time is proportional to the pieces of the source times those of both
layouts, and to the square of the number of devices.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcg.machine import Machine
from pcg.placement.layout import Layout
from pcg.placement.transfer import Transfer
from search.cost.native.compiled import compiled

Numbers = NDArray[np.int64]


class LayoutPieces(NamedTuple):
    """The pieces of a layout."""

    devices: Numbers
    partials: Numbers
    blocks: Numbers
    """[pieces, rank]"""
    numbers: Numbers
    """Equal for equal pieces."""
    extents: Numbers
    """[rank, 4]: the length of a block, the halo before and after it, and the whole size."""


class PairLinks(NamedTuple):
    """The links between devices. ``height``: the number of levels."""

    height: int
    levels: Numbers
    """[devices, devices]: the level at which two devices meet; -1 for one device."""
    latency: NDArray[np.float64]
    """[devices, devices]"""
    bandwidth: NDArray[np.float64]
    """[devices, devices]"""


class MessageRoom(NamedTuple):
    """Arrays that a call writes to."""

    held: Numbers
    """[devices]: the number of the piece of the source that each device holds; -1 for none."""
    holders: Numbers
    """[devices]: the devices that hold a piece of the source."""
    asking: Numbers
    """[devices, 2]: the devices that ask others for the piece, and the elements that each wants."""
    sent: Numbers
    """[devices, devices]: the elements that one device sends to another."""
    sums: NDArray[np.float64]
    """[2, 2, devices]: the messages and the bytes that each device sends, and receives."""


class FewMessages:
    """The times of messages between the devices of a small machine. ``itemsize``: bytes of an
    element."""

    def __init__(self, machine: Machine, itemsize: int) -> None:
        self._devices, self._itemsize = machine.devices, itemsize
        self._links = _links_of(machine)
        square = machine.devices, machine.devices
        self._room = MessageRoom(
            np.zeros(machine.devices, np.int64),
            np.zeros(machine.devices, np.int64),
            np.zeros((machine.devices, 2), np.int64),
            np.zeros(square, np.int64),
            np.zeros((2, 2, machine.devices)),
        )

    def busy(self, transfer: Transfer) -> NDArray[np.float64]:
        """Seconds for which each device sends or receives [devices]."""
        ends = _pieces(transfer.source.without_halos), _pieces(transfer.target)
        busy = np.zeros(self._devices)
        _find_busy(*ends, transfer.group, self._itemsize, self._links, self._room, busy)
        return busy


@lru_cache(maxsize=1 << 14)
def _pieces(layout: Layout) -> LayoutPieces:
    # Functions are compiled for each kind of memory: these are all without gaps.
    devices, partials, blocks, numbers = map(np.ascontiguousarray, layout.cells)
    tensor = layout.type
    extents = np.zeros((tensor.rank, 4), np.int64)
    extents[:, 0], extents[:, 3] = tensor.block, tensor.shape
    for halo in tensor.degrees.halos:
        extents[halo.dim, 1:3] = halo.widths
    return LayoutPieces(devices, partials, blocks, numbers, extents)


def _links_of(machine: Machine) -> PairLinks:
    devices = machine.devices
    sources, targets = np.divmod(np.arange(devices * devices), devices)
    levels = machine.meeting_levels(sources, targets)
    levels[sources == targets] = -1
    links = [
        machine.group_link((min(pair), max(pair)))
        for pair in zip(sources.tolist(), targets.tolist(), strict=True)
    ]
    square = devices, devices
    return PairLinks(
        len(machine.levels),
        levels.astype(np.int64).reshape(square),
        np.array([link.latency for link in links]).reshape(square),
        np.array([link.bandwidth for link in links]).reshape(square),
    )


@compiled
def _find_busy(
    source: LayoutPieces,
    target: LayoutPieces,
    group: int,
    itemsize: int,
    links: PairLinks,
    room: MessageRoom,
    busy: NDArray[np.float64],
) -> None:
    """Find the seconds for which each device is busy, with ``group`` partials summed into one."""
    _count(source, target, group, room)
    for level in range(links.height):
        _add_level(level, itemsize, links, room, busy)


@compiled
def _count(source: LayoutPieces, target: LayoutPieces, group: int, room: MessageRoom) -> None:
    """Count the elements that each device sends to each other (``Transfer.flows``)."""
    room.sent[:] = 0
    room.held[:] = -1
    for piece in range(len(source.devices)):
        room.held[source.devices[piece]] = source.numbers[piece]
    for piece in range(len(source.devices)):
        holders = _list_holders(source, piece, room.holders)
        if room.holders[0] != source.devices[piece]:
            continue  # an equal piece stands for it
        asked = 0
        for wanted in range(len(target.devices)):
            if source.partials[piece] // group != target.partials[wanted]:
                continue
            shared, to = _shared(source, piece, target, wanted), target.devices[wanted]
            if shared and room.held[to] != source.numbers[piece]:
                room.asking[asked, 0], room.asking[asked, 1] = to, shared
                asked += 1
        for number in range(asked):
            # As ``Holders.asked`` says.
            sender = room.holders[number * holders // asked]
            room.sent[sender, room.asking[number, 0]] += room.asking[number, 1]


@compiled
def _list_holders(source: LayoutPieces, piece: int, holders: Numbers) -> int:
    """List the devices that hold a piece, ascending, and return their number."""
    count = 0
    for other in range(len(source.devices)):
        if source.numbers[other] != source.numbers[piece]:
            continue
        at = count
        while at and holders[at - 1] > source.devices[other]:
            holders[at] = holders[at - 1]
            at -= 1
        holders[at] = source.devices[other]
        count += 1
    return count


@compiled
def _shared(source: LayoutPieces, piece: int, target: LayoutPieces, wanted: int) -> int:
    """The elements that a piece of the source and a wanted piece share."""
    shared = 1
    for dim in range(len(target.extents)):
        length, before, after, size = target.extents[dim]
        start = max(target.blocks[wanted, dim] * length - before, 0)
        stop = min((target.blocks[wanted, dim] + 1) * length + after, size)
        block, length = source.blocks[piece, dim], source.extents[dim, 0]
        shared *= max(min(stop, (block + 1) * length) - max(start, block * length), 0)
    return shared


@compiled
def _add_level(
    level: int, itemsize: int, links: PairLinks, room: MessageRoom, busy: NDArray[np.float64]
) -> None:
    """Add the seconds of the messages over the links of a level, which are those of the first two
    devices that meet there."""
    devices, latency, bandwidth = len(busy), 0.0, 0.0
    room.sums[:] = 0.0
    for source in range(devices):
        for target in range(devices):
            if links.levels[source, target] != level or not room.sent[source, target]:
                continue
            if not bandwidth:
                latency, bandwidth = links.latency[source, target], links.bandwidth[source, target]
            moved = room.sent[source, target] * itemsize
            for way, device in enumerate((source, target)):
                room.sums[way, 0, device] += 1
                room.sums[way, 1, device] += moved
    if bandwidth:
        for device in range(devices):
            longest = 0.0
            for way in range(2):
                count, moved = room.sums[way, 0, device], room.sums[way, 1, device]
                longest = max(longest, count * latency + moved / bandwidth)
            busy[device] += longest
