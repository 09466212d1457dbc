"""The tables from which plans are put together: durations, pieces, reshardings and weights.

Each thing is a row, and has a number. Rows are added when a plan needs them. Lists of a row, such
as the operands of a piece, lie one after the other in a column of their own: those of row i from
``first[i]`` to ``first[i + 1]``.

Columns double in size when they are full. Most rows are added in Python. Machine code adds those of
messages, if there is room (``native.message_moves``). Looking up a resharding or a weight takes
constant time on average (open addressing with linear probing; Knuth, The Art of Computer
Programming, volume 3, section 6.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search.cost.native.compiled import compiled, inlined
from search.cost.native.messages import MessageTables

Numbers = NDArray[np.int64]
Seconds = NDArray[np.float64]
Masks = NDArray[np.uint64]
"""[rows, words]: sets of devices, 64 in a word."""

ABSENT = -1
"""The value of a key that is not in a table; a number where there is none."""
VIA = -2
"""In place of the duration of a resharding that is made of two."""


HashTable = NDArray[np.int64]
"""[places, 3]: a key, and two numbers. The key is ABSENT where nothing is stored."""


@inlined
def place_of(table: HashTable, key: int) -> int:
    """The place of a key, or the free one at which it belongs."""
    last, mixed = len(table) - 1, (key ^ (key >> 31)) & 0x7FFFFFFF
    spread = mixed * 0x9E3779B1  # in 63 bits
    at = (spread ^ (spread >> 20)) & last
    while table[at, 0] != key and table[at, 0] != ABSENT:
        at = (at + 1) & last
    return at


@compiled
def _move_over(old: HashTable, new: HashTable) -> None:
    for at in range(len(old)):
        if old[at, 0] != ABSENT:
            place = place_of(new, old[at, 0])
            for column in range(3):
                new[place, column] = old[at, column]


class GrowingHashTable:
    """A hash table that doubles in size when it is half full."""

    def __init__(self, places: int = 1024) -> None:
        self.table: HashTable = np.full((places, 3), ABSENT)
        self.used: Numbers = np.zeros(1, np.int64)
        """[1]: the number of keys, to which machine code may add."""

    def add(self, key: int, first: int, second: int) -> None:
        """Add a key that is not in the table."""
        self.make_room(int(self.used[0]) + 1)
        self.table[place_of(self.table, key)] = key, first, second
        self.used[0] += 1

    def make_room(self, count: int) -> None:
        """Make room for so many keys in all."""
        while 2 * count > len(self.table):
            bigger = np.full((2 * len(self.table), 3), ABSENT)
            _move_over(self.table, bigger)
            self.table = bigger


def numbered_lists(lists: Sequence[Sequence[int]]) -> tuple[Numbers, Numbers]:
    """Lists one after the other: the place at which each begins, with the end of all; and their
    numbers."""
    every = [number for own in lists for number in own]
    return np.cumsum([0, *map(len, lists)]), np.array(every, np.int64)


class Durations(NamedTuple):
    """Durations (``search.cost.cost.Duration``). The first one is NOTHING."""

    rows: Numbers
    """[durations, 4]: the first group and the number of groups; the first device, in ``devices``,
    and the devices of each group."""
    devices: Numbers
    """The devices of all groups, one group after the other."""
    seconds: Seconds
    """Of each group."""
    shortest: Seconds
    """Of each duration."""
    busy: Masks
    """The devices of each duration."""
    busy_groups: Masks
    """The devices of each group."""
    used: Numbers
    """[3]: the numbers of durations, of groups, and of devices in ``devices``."""


# The columns of durations.
GROUP, GROUPS, DEVICE, WIDTH = range(4)
# The places of numbers in use.
DURATIONS, ALL_GROUPS, ALL_DEVICES = range(3)


@compiled
def has_room(durations: Durations, groups: int, devices: int) -> bool:
    """Whether a duration of so many groups can be added, with so many devices in all of them."""
    used = durations.used
    return (
        used[DURATIONS] < len(durations.rows)
        and used[ALL_GROUPS] + groups <= len(durations.seconds)
        and used[ALL_DEVICES] + devices <= len(durations.devices)
    )


@compiled
def add_duration(durations: Durations, groups: Numbers, seconds: Seconds, members: int) -> int:
    """Add a duration, for which there must be room. Returns its number. ``groups``: [groups,
    ``members`` or more], the devices of each; ``seconds``: of each."""
    used = durations.used
    number, first, device = used[DURATIONS], used[ALL_GROUPS], used[ALL_DEVICES]
    row = durations.rows[number]
    row[GROUP], row[GROUPS], row[DEVICE], row[WIDTH] = first, len(groups), device, members
    for group in range(len(groups)):
        durations.seconds[first + group] = seconds[group]
        if group == 0 or seconds[group] < durations.shortest[number]:
            durations.shortest[number] = seconds[group]
        for at in range(members):
            durations.devices[device + at] = groups[group, at]
        _mark(durations, number, first + group, device, members)
        device += members
    used[DURATIONS], used[ALL_GROUPS], used[ALL_DEVICES] = number + 1, first + len(groups), device
    return int(number)


@compiled
def add_moved(durations: Durations, like: int, by: int) -> int:
    """Add a duration like another one, on devices whose numbers are higher by ``by``. There must be
    room. Returns its number."""
    used, row = durations.used, durations.rows[like]
    number, group, device = used[DURATIONS], used[ALL_GROUPS], used[ALL_DEVICES]
    groups, width = row[GROUPS], row[WIDTH]
    made = durations.rows[number]
    made[GROUP], made[GROUPS], made[DEVICE], made[WIDTH] = group, groups, device, width
    durations.shortest[number] = durations.shortest[like]
    for own in range(groups):
        durations.seconds[group + own] = durations.seconds[row[GROUP] + own]
        for at in range(own * width, (own + 1) * width):
            durations.devices[device + at] = durations.devices[row[DEVICE] + at] + by
        _mark(durations, number, group + own, device + own * width, width)
    used[DURATIONS], used[ALL_GROUPS] = number + 1, group + groups
    used[ALL_DEVICES] = device + groups * width
    return int(number)


@inlined
def _mark(durations: Durations, number: int, group: int, first: int, members: int) -> None:
    """Note the devices of a group as busy. ``first``: the place of the first one."""
    for at in range(first, first + members):
        device = durations.devices[at]
        word, mask = device >> 6, np.uint64(1) << np.uint64(device & 63)
        durations.busy[number, word] |= mask
        durations.busy_groups[group, word] |= mask


class Pieces(NamedTuple):
    """Operators that were cut (``OperatorPiece``)."""

    rows: Numbers
    """[pieces, 8]: the first operand and their number; the first result and their number; the
    durations forward, backward, and of the late part; whether a gradient passes."""
    operands: Numbers
    """[operands, 4]: the layout in which it is wanted; for a leaf, that in which it is stored, else
    ABSENT; whether it is an input; whether it is differentiated."""
    results: Numbers
    """[results, 3]: its layout; the layout in which it is left as an output of the graph, or ABSENT
    if it is left as it is made; and the number of its form as it is read."""
    seconds: Seconds
    """[pieces, 3]: seconds forward, backward without the late part, and of the late part."""


# The columns of pieces, of their operands and of their results.
FIRST_OPERAND, OPERANDS, FIRST_RESULT, RESULTS, FORWARD, BACKWARD, LATE, PASSES = range(8)
WANTED, HOME, IS_INPUT, IS_DIFFERENTIATED = range(4)
MADE_IN, LEFT, OUTER = range(3)


class Layouts(NamedTuple):
    """The pieces of tensors on devices."""

    rows: Numbers
    """[layouts, 5]: for a weight: the bytes of a gradient, the number of the groups that exchange
    it or ABSENT, the duration of that exchange by itself, that of the update, and the number of its
    pieces and their devices."""
    places: Numbers
    """[layouts, 2]: the number of the shape, and the lowest device."""
    sum_seconds: Seconds
    """Seconds of adding one more gradient."""


# The columns of layouts.
BLOCK, EXCHANGING, SYNC, UPDATE, PIECES = range(5)


class Shape(NamedTuple):
    """What all plans of a graph have in common. Operators and values are referred to by number."""

    operand: Numbers
    """The first operand of each operator, and the end of all."""
    reads: Numbers
    """The value of each operand."""
    result: Numbers
    """The first result of each operator, and the end of all."""
    makes: Numbers
    """The value of each result."""
    edge: Numbers
    """The first edge of each operator, from an operator that it reads."""
    edges: Numbers
    """[edges, 3]: the maker, its port, and the position of the operand."""
    is_weight: Numbers
    is_trained: Numbers
    """For each value. A trained one needs a gradient."""
    outputs: Numbers
    """[outputs, 6]: the value; the maker and its port, or ABSENT; and, for a leaf, the layout in
    which it is wanted, its home, and whether it is an input."""
    has_loss: bool


class Tables(NamedTuple):
    """All tables."""

    shape: Shape
    durations: Durations
    pieces: Pieces
    layouts: Layouts
    moves: HashTable
    """For two layouts (``pair``): the durations of a resharding forward and backward; twice ABSENT
    if nothing moves; or VIA, and the layout between them."""
    moved: Numbers
    """[1]: the number of keys in ``moves``."""
    messages: MessageTables
    """The shapes of layouts, if there are few devices, else none."""
    shared: HashTable
    """For a weight's layout and the bytes of its bucket (``pair``): the duration of exchange, and
    0."""


BITS = 42
"""The bits of the second number of a pair."""


@inlined
def pair(first: int, second: int) -> int:
    """A key for two numbers, of 21 and of 42 bits."""
    return (first << 42) | second
