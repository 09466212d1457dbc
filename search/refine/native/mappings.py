"""Operator mappings as rows of a table (``OperatorMapping``). Each has a number.

A state has two rows: the number of each operator's mapping, in the order of the graph, and the
numbers of the operators in the order of issue.

Complexity: a mapping is found by open addressing with linear probing, in constant time on average.
"""

from __future__ import annotations

from typing import NamedTuple

from search.cost.native.compiled import compiled, inlined
from search.refine.native.tables import ABSENT, Numbers


class MappingTable(NamedTuple):
    """The mappings that occurred."""

    rows: Numbers
    """[mappings, 3 + 3 * axes]: the first and the last device; the number of axes; and the place,
    degree and stride of each axis, slowest first. The rest is 0."""
    numbers: Numbers
    """[places]: the number of the mapping at a place of the hash table, or ABSENT."""
    used: Numbers
    """[1]: the number of mappings."""
    draft: Numbers
    """A row that is being made."""


MAPPED, ISSUED = range(2)
"""The rows of a state."""
START, LAST, AXES, FIRST_AXIS = range(4)
"""The columns of a row. An axis has three: place, degree and stride."""


@inlined
def copy_state(source: Numbers, target: Numbers) -> None:
    for row in range(source.shape[0]):
        for at in range(source.shape[1]):
            target[row, at] = source[row, at]


@inlined
def is_equal(one: Numbers, other: Numbers) -> bool:
    """Whether two states are the same."""
    for row in range(one.shape[0]):
        for at in range(one.shape[1]):
            if one[row, at] != other[row, at]:
                return False
    return True


@inlined
def has_room(table: MappingTable, more: int) -> bool:
    """Whether so many more mappings can be added."""
    count = table.used[0] + more
    return count <= len(table.rows) and 2 * count <= len(table.numbers)


@inlined
def place_of_mapping(table: MappingTable, row: Numbers) -> int:
    """The place of a mapping in the hash table, or the free one at which it belongs."""
    mixed, last = 0, len(table.numbers) - 1
    for column in range(len(row)):
        mixed = (mixed * 0x01000193 ^ row[column]) & 0x7FFFFFFF
    at = (mixed ^ (mixed >> 15)) & last
    while table.numbers[at] != ABSENT and not _is_same(table.rows[table.numbers[at]], row):
        at = (at + 1) & last
    return at


@inlined
def _is_same(one: Numbers, other: Numbers) -> bool:
    same = True
    for column in range(len(one)):
        same = same and one[column] == other[column]
    return same


@inlined
def number_of(table: MappingTable, start: int) -> int:
    """The number of the draft, on an array of devices that begins at ``start``. It is added if it
    is new. There must be room."""
    row, place = table.draft, 0
    row[START] = row[LAST] = start
    for at in range(row[AXES]):
        axis = FIRST_AXIS + 3 * at
        row[LAST] += (row[axis + 1] - 1) * row[axis + 2]
    for column in range(FIRST_AXIS + 3 * row[AXES], len(row)):
        row[column] = 0
    place = place_of_mapping(table, row)
    if table.numbers[place] == ABSENT:
        number = table.used[0]
        for column in range(len(row)):
            table.rows[number, column] = row[column]
        table.numbers[place] = number
        table.used[0] = number + 1
    return int(table.numbers[place])


@inlined
def begin_draft(table: MappingTable) -> None:
    """Begin a draft, without axes."""
    table.draft[AXES] = 0


@inlined
def add_axis(table: MappingTable, place: int, degree: int, stride: int) -> None:
    """Add an axis to the draft, faster than those before."""
    row = table.draft
    axis = FIRST_AXIS + 3 * row[AXES]
    row[axis], row[axis + 1], row[axis + 2] = place, degree, stride
    row[AXES] += 1


@inlined
def pack(table: MappingTable) -> int:
    """Give the draft consecutive devices. Returns their number."""
    row, size = table.draft, 1
    for at in range(row[AXES] - 1, -1, -1):
        axis = FIRST_AXIS + 3 * at
        row[axis + 2] = size
        size *= row[axis + 1]
    return size


@compiled
def moved_to(table: MappingTable, number: int, start: int) -> int:
    """The number of the same array of devices, beginning at another one."""
    row = table.rows[number]
    if row[START] == start:
        return number
    for column in range(len(row)):
        table.draft[column] = row[column]
    return number_of(table, start)
