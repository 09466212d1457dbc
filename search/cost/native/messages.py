"""The time of the messages of a transfer between few devices, in machine code.

It is that of ``search.cost.messages`` to the last bit: the bytes are whole numbers, whose sums do
not depend on their order. The time is proportional to the pieces of the source times those of both
layouts, and to the square of the number of devices.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcg.machine import Machine
from pcg.memo import Answers
from pcg.placement.layout import Layout
from pcg.placement.transfer import Transfer
from search.cost.native.columns import numbers
from search.cost.native.compiled import compiled, inlined

Numbers = NDArray[np.int64]


class LayoutCells(NamedTuple):
    """The pieces of many layouts, by the number of the layout."""

    rows: Numbers
    """[layouts, 6]: the first piece and their number; the first of the blocks' positions; the first
    dimension and their number; and the partials of the tensor."""
    pieces: Numbers
    """[pieces, 3]: the device, the partial, and a number that is equal for equal pieces."""
    blocks: Numbers
    """The positions of each piece's block along each dimension, one piece after the other."""
    extents: Numbers
    """[dimensions, 4]: the length of a block, the halo before and after it, and the whole size."""


# The columns of layouts, of their pieces and of their dimensions.
FIRST_PIECE, PIECES, FIRST_BLOCK, FIRST_DIM, RANK, PARTIALS = range(6)
DEVICE, PARTIAL, NUMBER = range(3)
LENGTH, BEFORE, AFTER, SIZE = range(4)


class CellRows:
    """The rows of layouts in ``LayoutCells``, in the order in which they are added."""

    def __init__(self) -> None:
        self._rows, self._pieces = numbers(6), numbers(3)
        self._blocks, self._extents = numbers(), numbers(4)

    def __len__(self) -> int:
        return self._rows.count

    def add(self, layout: Layout) -> int:
        """Add a layout. Returns its number."""
        cells, tensor, number = layout.cells, layout.type, self._rows.count
        count, rank = len(cells.devices), tensor.rank
        first = self._pieces.count, count, self._blocks.count, self._extents.count
        self._rows.extend([(*first, rank, tensor.degrees.partials)], 1)
        self._pieces.extend(np.column_stack((cells.devices, cells.partials, cells.numbers)), count)
        self._blocks.extend(cells.blocks.ravel(), count * rank)
        widths = {halo.dim: halo.widths for halo in tensor.degrees.halos}
        sizes = zip(tensor.block, tensor.shape, strict=True)
        extents = [
            (length, *widths.get(dim, (0, 0)), size) for dim, (length, size) in enumerate(sizes)
        ]
        self._extents.extend(extents, rank)
        return number

    def table(self) -> LayoutCells:
        """The rows as they are now."""
        columns = self._rows, self._pieces, self._blocks, self._extents
        return LayoutCells(*(column.rows for column in columns))


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
    busy: NDArray[np.float64]
    """[devices]: the seconds for which each sends or receives."""
    members: Numbers
    """[1, devices]: the devices that are busy."""
    longest: NDArray[np.float64]
    """[1]: the seconds of the one that is busy for longest."""


class MessageTables(NamedTuple):
    """All that the time of messages depends on."""

    cells: LayoutCells
    itemsize: int
    """Bytes of an element."""
    links: PairLinks
    room: MessageRoom


class FewMessages:
    """The times of messages between the devices of a small machine. ``itemsize``: bytes of an
    element."""

    def __init__(self, machine: Machine, itemsize: int) -> None:
        self._itemsize, self._links = itemsize, _links_of(machine)
        self._room = _room(machine.devices)
        self._cells = CellRows()
        self._numbers = Answers(self._cells.add)

    def tables(self, cells: CellRows) -> MessageTables:
        """The tables for messages between some layouts, as they are now."""
        return MessageTables(cells.table(), self._itemsize, self._links, self._room)

    def busy(self, transfer: Transfer) -> NDArray[np.float64]:
        """Seconds for which each device sends or receives [devices]."""
        source, target = self._numbers[transfer.source], self._numbers[transfer.target]
        find_busy(self.tables(self._cells), source, 0, target, 0)
        return self._room.busy.copy()


@cache
def no_messages() -> MessageTables:
    """Tables without layouts and devices, in whose place others compute the time of messages."""
    links = PairLinks(0, np.zeros((0, 0), np.int64), np.zeros((0, 0)), np.zeros((0, 0)))
    return MessageTables(CellRows().table(), 0, links, _room(0))


def _room(devices: int) -> MessageRoom:
    return MessageRoom(
        np.zeros(devices, np.int64),
        np.zeros(devices, np.int64),
        np.zeros((devices, 2), np.int64),
        np.zeros((devices, devices), np.int64),
        np.zeros((2, 2, devices)),
        np.zeros(devices),
        np.zeros((1, devices), np.int64),
        np.zeros(1),
    )


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
def find_busy(
    messages: MessageTables, source: int, source_by: int, target: int, target_by: int
) -> None:
    """Find the seconds for which each device is busy with the messages between two layouts
    (``MessageRoom.busy``), with the numbers of their devices higher by some numbers. Adjacent
    partials are summed as far as the target wants."""
    cells, room = messages.cells, messages.room
    group = cells.rows[source, PARTIALS] // cells.rows[target, PARTIALS]
    _count(cells, source, source_by, target, target_by, group, room)
    room.busy[:] = 0.0
    for level in range(messages.links.height):
        _add_level(level, messages.itemsize, messages.links, room)


@compiled
def _count(
    cells: LayoutCells,
    source: int,
    source_by: int,
    target: int,
    target_by: int,
    group: int,
    room: MessageRoom,
) -> None:
    """Count the elements that each device sends to each other (``Transfer.flows``)."""
    pieces, begin = cells.pieces, cells.rows[source, FIRST_PIECE]
    end = begin + cells.rows[source, PIECES]
    first = cells.rows[target, FIRST_PIECE]
    last = first + cells.rows[target, PIECES]
    room.sent[:] = 0
    room.held[:] = -1
    for piece in range(begin, end):
        room.held[pieces[piece, DEVICE] + source_by] = pieces[piece, NUMBER]
    for piece in range(begin, end):
        holders = _list_holders(pieces, begin, end, pieces[piece, NUMBER], room.holders)
        if room.holders[0] != pieces[piece, DEVICE]:
            continue  # an equal piece stands for it
        asked = 0
        for wanted in range(first, last):
            if pieces[piece, PARTIAL] // group != pieces[wanted, PARTIAL]:
                continue
            to = pieces[wanted, DEVICE] + target_by
            shared = _shared(cells, source, piece - begin, target, wanted - first)
            if shared and room.held[to] != pieces[piece, NUMBER]:
                room.asking[asked, 0], room.asking[asked, 1] = to, shared
                asked += 1
        for number in range(asked):
            # As ``Holders.asked`` says.
            sender = room.holders[number * holders // asked] + source_by
            room.sent[sender, room.asking[number, 0]] += room.asking[number, 1]


@inlined
def _list_holders(pieces: Numbers, begin: int, end: int, number: int, holders: Numbers) -> int:
    """List the devices that hold a piece, ascending, and return their number. ``begin``, ``end``:
    the pieces of the layout."""
    count = 0
    for other in range(begin, end):
        if pieces[other, NUMBER] != number:
            continue
        at = count
        while at and holders[at - 1] > pieces[other, DEVICE]:
            holders[at] = holders[at - 1]
            at -= 1
        holders[at] = pieces[other, DEVICE]
        count += 1
    return count


@inlined
def _shared(cells: LayoutCells, source: int, piece: int, target: int, wanted: int) -> int:
    """The elements that a piece of the source and a wanted piece share. Pieces are counted from
    the first one of their layout. Halos of the source do not count."""
    shared, rank = 1, cells.rows[source, RANK]
    own = cells.rows[source, FIRST_BLOCK] + piece * rank
    other = cells.rows[target, FIRST_BLOCK] + wanted * rank
    for dim in range(rank):
        length = cells.extents[cells.rows[source, FIRST_DIM] + dim, LENGTH]
        extent = cells.extents[cells.rows[target, FIRST_DIM] + dim]
        start = max(cells.blocks[other + dim] * extent[LENGTH] - extent[BEFORE], 0)
        stop = min((cells.blocks[other + dim] + 1) * extent[LENGTH] + extent[AFTER], extent[SIZE])
        block = cells.blocks[own + dim] * length
        shared *= max(min(stop, block + length) - max(start, block), 0)
    return shared


@compiled
def _add_level(level: int, itemsize: int, links: PairLinks, room: MessageRoom) -> None:
    """Add the seconds of the messages over the links of a level, which are those of the first two
    devices that meet there."""
    devices, latency, bandwidth = len(room.busy), 0.0, 0.0
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
            room.busy[device] += longest
