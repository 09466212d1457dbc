"""Random changes of a state (``search.refine.moves``).

Complexity: the operators that change, and their operands.
"""

from __future__ import annotations

from search.cost.native.compiled import compiled
from search.refine.native.mappings import (
    ISSUED,
    LAST,
    MAPPED,
    START,
    MappingTable,
    copy_state,
    moved_to,
)
from search.refine.native.orders import reissue
from search.refine.native.random_mappings import (
    MoveTables,
    aligned,
    any_of,
    beside,
    new_mark,
    resized,
)
from search.refine.native.tables import ABSENT, Numbers, Seconds
from search.refine.native.xorshift import below, fraction

# The columns of shares, added up: see ``search.refine.moves.Shares``.
ANY_OF, ALIGNED, BESIDE, SHIFTED, SPREAD, BEGUN, RELOCATED, GROWN, REISSUED = range(9)
OF_FORKS = 0.4
"""The share of regions that are branches of forks, or all operators."""
LONGEST = 8
"""The most operators that change together at random. A branch changes as a whole."""
EXCHANGED, IN_PART, TO_USED = 0.5, 0.6, 0.4
"""The parts of relocations in which operators change places with others; of sets that change in
part; and of moves that go to the devices of another operator rather than to any."""
STAY = 0.5
"""The part of sets with more or fewer devices that begin at the same device as before."""


@compiled
def move(
    moves: MoveTables, table: MappingTable, shares: Seconds, now: Numbers, other: Numbers
) -> None:
    """Make ``other`` the state ``now`` with a random change. It may be equal."""
    random = moves.random
    copy_state(now, other)
    operator = moves.drawn[below(random, len(moves.drawn))]
    if fraction(random) < shares[REISSUED]:
        reissue(moves, operator, now[ISSUED], other[ISSUED])
    else:
        _map_anew(moves, table, shares, operator, now[MAPPED], other[MAPPED])


@compiled
def _map_anew(
    moves: MoveTables,
    table: MappingTable,
    shares: Seconds,
    operator: int,
    now: Numbers,
    other: Numbers,
) -> None:
    """Change the mapping of an operator, or of some around it."""
    random = moves.random
    if fraction(random) < shares[GROWN]:
        _grow(moves, table, operator, now, other)
        return
    if fraction(random) < shares[RELOCATED]:
        _relocate(moves, table, operator, now, other)
        return
    kind, edge = fraction(random), moves.first[operator]
    edges = int(moves.first[operator + 1] - edge)
    if kind < shares[ANY_OF]:
        other[operator] = any_of(moves, table, operator)
    elif kind < shares[BESIDE] and edges:
        edge += below(random, edges)
        like = int(now[moves.other[edge]])
        if kind < shares[ALIGNED]:
            ends = moves.dimensions[edge]
            other[operator] = aligned(moves, table, like, ends[1], ends[0], operator)
        else:
            other[operator] = beside(moves, table, like, operator)
    elif kind < shares[SHIFTED]:
        moves.some[0] = operator
        _shift(moves, table, 1, now, other)
    else:
        _move_region(moves, table, kind, shares, _find_region(moves, operator), now, other)


@compiled
def _move_region(
    moves: MoveTables,
    table: MappingTable,
    kind: float,
    shares: Seconds,
    count: int,
    now: Numbers,
    other: Numbers,
) -> None:
    """Change the first ``count`` operators of ``moves.some``."""
    random = moves.random
    if kind < shares[SPREAD]:
        seed = moves.some[below(random, count)]
        _spread(moves, table, seed, any_of(moves, table, seed), count, other)
    elif kind < shares[BEGUN]:
        _shift(moves, table, count, now, other)
    else:
        size = 1 + below(random, moves.devices)
        start = below(random, moves.devices - size + 1)
        for at in range(count):
            operator = moves.some[at]
            other[operator] = resized(moves, table, operator, int(now[operator]), start, size)


@compiled
def _find_region(moves: MoveTables, operator: int) -> int:
    """Find a set of connected operators: a branch, or some around an operator. Returns their
    number."""
    random, some, count = moves.random, moves.some, 1
    if fraction(random) < OF_FORKS:
        region = below(random, len(moves.regions) - 1)
        count = moves.regions[region + 1] - moves.regions[region]
        for at in range(count):
            some[at] = moves.members[moves.regions[region] + at]
        return count
    some[0] = operator
    for _ in range(1 + below(random, LONGEST)):
        end = some[below(random, count)]
        edges = int(moves.first[end + 1] - moves.first[end])
        if edges:
            other, is_new = moves.other[moves.first[end] + below(random, edges)], True
            for at in range(count):
                is_new = is_new and some[at] != other
            if is_new:
                some[count] = other
                count += 1
    return count


@compiled
def _relocate(
    moves: MoveTables, table: MappingTable, operator: int, now: Numbers, other: Numbers
) -> None:
    """Move operators that share their devices to other devices, or exchange two such sets."""
    random, rows = moves.random, table.rows
    second = below(random, len(now))
    own, place = rows[now[operator], START], rows[now[second], START]
    if fraction(random) < EXCHANGED:
        if place == own:
            return
        _put_at(moves, table, _find_sharing(moves, table, second, now), own, now, other)
    elif fraction(random) >= TO_USED:
        place = below(random, moves.devices)
    _put_at(moves, table, _find_sharing(moves, table, operator, now), place, now, other)


@compiled
def _grow(
    moves: MoveTables, table: MappingTable, operator: int, now: Numbers, other: Numbers
) -> None:
    """Give operators that share their devices twice as many, half as many, one more or one less.
    They are cut anew, aligned with each other."""
    random, row = moves.random, table.rows[now[operator]]
    start, before = int(row[START]), int(row[LAST] - row[START] + 1)
    size = (2 * before, before // 2, before + 1, before - 1)[below(random, 4)]
    size = min(max(size, 1), moves.devices)
    if fraction(random) < STAY:
        start = min(start, moves.devices - size)
    else:
        start = below(random, moves.devices - size + 1)
    count = _find_sharing(moves, table, operator, now)
    seed = moves.some[below(random, count)]
    mapping = resized(moves, table, seed, int(now[seed]), start, size)
    _spread(moves, table, seed, mapping, count, other)


@compiled
def _find_sharing(moves: MoveTables, table: MappingTable, operator: int, now: Numbers) -> int:
    """Find the connected operators on the same devices as an operator, or some around it. Returns
    their number."""
    random, rows, some, waiting = moves.random, table.rows, moves.some, moves.waiting
    mark, own = new_mark(moves), rows[now[operator]]
    most = 1 + below(random, LONGEST) if fraction(random) < IN_PART else len(now)
    some[0] = waiting[0] = operator
    moves.marks[operator] = mark
    count = left = 1
    while left and count < most:
        at = below(random, left)
        left -= 1
        end, waiting[at] = waiting[at], waiting[left]
        for edge in range(moves.first[end], moves.first[end + 1]):
            other = moves.other[edge]
            like = rows[now[other]]
            same = like[START] == own[START] and like[LAST] == own[LAST]
            if same and moves.marks[other] != mark:
                moves.marks[other] = mark
                some[count] = waiting[left] = other
                count += 1
                left += 1
    return count


@compiled
def _put_at(
    moves: MoveTables, table: MappingTable, count: int, start: int, now: Numbers, other: Numbers
) -> None:
    """Put operators on the same devices on as many devices that begin at ``start``, or at the last
    place where they have room."""
    row = table.rows[now[moves.some[0]]]
    start = min(start, moves.devices - 1 - row[LAST] + row[START])
    for at in range(count):
        operator = moves.some[at]
        other[operator] = moved_to(table, int(now[operator]), start)


@compiled
def _shift(
    moves: MoveTables, table: MappingTable, count: int, now: Numbers, other: Numbers
) -> None:
    """Move a region to higher or lower devices."""
    first, last = moves.devices, 0
    for at in range(count):
        row = table.rows[now[moves.some[at]]]
        first, last = min(first, row[START]), max(last, row[LAST])
    by = below(moves.random, first + moves.devices - last) - first
    for at in range(count):
        operator = moves.some[at]
        number = int(now[operator])
        other[operator] = moved_to(table, number, table.rows[number, START] + by)


@compiled
def _spread(
    moves: MoveTables, table: MappingTable, seed: int, mapping: int, count: int, other: Numbers
) -> None:
    """Map a region like one of its operators, aligned with it."""
    mark, waiting, left = new_mark(moves), moves.waiting, 1
    for at in range(count):
        moves.marks[moves.some[at]] = mark
    moves.marks[seed] = 0
    other[seed], waiting[0] = mapping, seed
    while left:
        left -= 1
        operator = waiting[left]
        for edge in range(moves.first[operator], moves.first[operator + 1]):
            end, ends = moves.other[edge], moves.dimensions[edge]
            if moves.marks[end] == mark:
                moves.marks[end] = 0
                other[end] = aligned(moves, table, int(other[operator]), ends[0], ends[1], end)
                waiting[left] = end
                left += 1


@compiled
def lay_apart(moves: MoveTables, table: MappingTable, now: Numbers, other: Numbers) -> bool:
    """Make ``other`` the state ``now`` with the branches of a random fork on neighbouring groups of
    devices. Moving one branch alone to fewer devices would gain nothing as long as the others are
    on all. False if nothing forks."""
    random, mapped = moves.random, other[MAPPED]
    if len(moves.forks) < 2:
        return False
    copy_state(now, other)
    fork = below(random, len(moves.forks) - 1)
    first, count = moves.forks[fork], moves.forks[fork + 1] - moves.forks[fork]
    _make_groups(moves, count)
    for branch in range(count):
        start, last = moves.groups[branch, 0], moves.groups[branch, 1]
        begin = moves.branches[first + branch]
        operators = int(moves.branches[first + branch + 1] - begin)
        for at in range(operators):
            moves.some[at] = moves.branched[begin + at]
        seed = moves.some[below(random, operators)]
        like = int(now[MAPPED, seed]) if fraction(random) < 0.5 else ABSENT
        mapping = resized(moves, table, seed, like, start, last - start + 1)
        _spread(moves, table, seed, mapping, operators, mapped)
    return True


@compiled
def _make_groups(moves: MoveTables, count: int) -> None:
    """Make neighbouring groups of devices, in random order. If there are more groups than devices,
    each has one device, and some share theirs."""
    random, devices, groups = moves.random, moves.devices, moves.groups
    for group in range(count):
        groups[group, 0] = group * devices // count
    if count <= devices and fraction(random) < 0.5:
        group = 1  # a random sample, in order (Knuth, volume 2, section 3.4.2)
        for device in range(1, devices):
            if below(random, devices - device) < count - group:
                groups[group, 0] = device
                group += 1
    for group in range(count):
        end = groups[group + 1, 0] if group + 1 < count else devices
        groups[group, 1] = max(groups[group, 0], end - 1)
    for group in range(count - 1, 0, -1):
        other = below(random, group + 1)
        for column in range(2):
            held = groups[group, column]
            groups[group, column] = groups[other, column]
            groups[other, column] = held
