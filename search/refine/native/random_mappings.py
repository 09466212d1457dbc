"""Random mappings of an operator, by itself or like that of a neighbour.

Complexity: the axes of the mapping times those of the operator's space.
"""

from __future__ import annotations

from typing import NamedTuple

from search.cost.native.compiled import compiled, inlined
from search.map.space.strategies import REPLICATE
from search.refine.native.mappings import (
    AXES,
    FIRST_AXIS,
    START,
    MappingTable,
    add_axis,
    begin_draft,
    number_of,
    pack,
)
from search.refine.native.tables import ABSENT, Numbers
from search.refine.native.xorshift import below, fraction

MOST_AXES = 2
"""The most axes of a random mapping."""
ALL_DEVICES, STRIDED = 0.7, 0.15
"""The share of axes that take all devices that are left, and of mappings whose devices do not
follow each other."""
NO_DIMENSION = -9
"""Stands for a dimension where an axis cuts none of a tensor."""
_NOTHING = -9
"""Stands for no axis at all."""


class MoveTables(NamedTuple):
    """What the changes of the states of a graph depend on, and room to make them."""

    devices: int
    axes: Numbers
    """[operators]: the number of axes of its space."""
    passes: Numbers
    """[operators, axes]: whether an axis stands for partial sums that pass through."""
    fits: Numbers
    """[operators, axes, degrees]: whether an operator may be cut into so many pieces."""
    first: Numbers
    """[operators + 1]: the first edge of each operator."""
    other: Numbers
    """[edges]: the operator at the other end."""
    dimensions: Numbers
    """[edges, 2, axes]: for each axis of the operator, then of the other one: the dimension of the
    tensor between them that it cuts, or NO_DIMENSION."""
    regions: Numbers
    """[regions + 1]: the first operator of each region in ``members``."""
    members: Numbers
    forks: Numbers
    """[forks + 1]: the first branch of each fork."""
    branches: Numbers
    """[branches + 1]: the first operator of each branch in ``branched``."""
    branched: Numbers
    drawn: Numbers
    """The operators of which one is drawn for each change."""
    random: Numbers
    some: Numbers
    """[operators]: those that change."""
    waiting: Numbers
    """[operators]"""
    marks: Numbers
    """[operators + 1]: a mark of each operator, and the number of marks that were used."""
    free: Numbers
    """[axes + 2]: the axes among which one is drawn."""
    groups: Numbers
    """[branches + 1, 2]: the first and the last device of a group."""


@inlined
def new_mark(moves: MoveTables) -> int:
    """A mark that no operator has."""
    moves.marks[-1] += 1
    return int(moves.marks[-1])


@compiled
def any_of(moves: MoveTables, table: MappingTable, operator: int) -> int:
    """A random mapping of an operator: on consecutive devices, or on every second, third, ..."""
    random, row = moves.random, table.draft
    size = 1 + below(random, moves.devices)
    begin_draft(table)
    while size > 1 and row[AXES] < MOST_AXES:
        degree = size if fraction(random) < ALL_DEVICES else 2 + below(random, size - 1)
        count = _find_free(moves, row, operator, degree)
        if count:
            add_axis(table, moves.free[below(random, count)], degree, 0)
            size //= degree
        else:
            size -= 1
    taken = pack(table)
    if row[AXES] and fraction(random) < STRIDED:
        times = 1 + below(random, max(1, moves.devices // taken))
        taken = (taken - 1) * times + 1
        for at in range(row[AXES]):
            row[FIRST_AXIS + 3 * at + 2] *= times
    return number_of(table, below(random, moves.devices - taken + 1))


@compiled
def _find_free(moves: MoveTables, row: Numbers, operator: int, degree: int) -> int:
    """Find the axes along which an operator may be cut into so many pieces, besides those of
    ``row``. Copies and partial sums that pass through exclude each other. Returns their number; the
    axis of copies comes last."""
    excludes, count = False, 0
    for at in range(row[AXES]):
        place = row[FIRST_AXIS + 3 * at]
        excludes = excludes or place == REPLICATE or moves.passes[operator, place] != 0
    for place in range(moves.axes[operator]):
        if (excludes and moves.passes[operator, place]) or not moves.fits[operator, place, degree]:
            continue
        is_free = True
        for at in range(row[AXES]):
            is_free = is_free and row[FIRST_AXIS + 3 * at] != place
        if is_free:
            moves.free[count] = place
            count += 1
    if not excludes:
        moves.free[count] = REPLICATE
        count += 1
    return count


@compiled
def aligned(
    moves: MoveTables,
    table: MappingTable,
    like: int,
    own: Numbers,
    others: Numbers,
    operator: int,
) -> int:
    """The mapping of an operator that is aligned with that of a neighbour: the same dimensions of
    the tensor between them are cut on the same devices, as far as possible. ``own``: the dimensions
    along the axes of the neighbour; ``others``: along those of the operator."""
    free, axes = moves.free, table.rows[like, AXES]
    begin_draft(table)
    for at in range(axes):
        axis = FIRST_AXIS + 3 * at
        place, degree = table.rows[like, axis], table.rows[like, axis + 1]
        wanted = NO_DIMENSION if place == REPLICATE else own[place]
        count, fitting = _find_free(moves, table.draft, operator, degree), 0
        copies = count > 0 and free[count - 1] == REPLICATE
        for choice in range(count):
            if free[choice] != REPLICATE and others[free[choice]] == wanted:
                free[fitting] = free[choice]
                fitting += 1
        if wanted == NO_DIMENSION or not fitting:
            if copies:
                free[fitting] = REPLICATE
                fitting += 1
            free[fitting] = _NOTHING
            fitting += 1
        place = free[below(moves.random, fitting)]
        if place != _NOTHING:
            add_axis(table, place, degree, table.rows[like, axis + 2])
    return number_of(table, table.rows[like, START])


@compiled
def beside(moves: MoveTables, table: MappingTable, like: int, operator: int) -> int:
    """A mapping of an operator on the devices of a neighbour, cut along any axes. Where the
    neighbour's tensor has to move anyway, another cut may cost no more and save later moves."""
    begin_draft(table)
    for at in range(table.rows[like, AXES]):
        axis = FIRST_AXIS + 3 * at
        degree = table.rows[like, axis + 1]
        count = _find_free(moves, table.draft, operator, degree)
        moves.free[count] = _NOTHING
        place = moves.free[below(moves.random, count + 1)]
        if place != _NOTHING:
            add_axis(table, place, degree, table.rows[like, axis + 2])
    return number_of(table, table.rows[like, START])


@compiled
def resized(
    moves: MoveTables, table: MappingTable, operator: int, now: int, start: int, size: int
) -> int:
    """A mapping on a group of devices, cut as before along one axis as far as possible. ``now``:
    the mapping before, or ABSENT."""
    begin_draft(table)
    free, count = moves.free, 0
    if now != ABSENT:
        for at in range(table.rows[now, AXES]):
            place, is_new = table.rows[now, FIRST_AXIS + 3 * at], True
            for other in range(count):
                is_new = is_new and free[other] != place
            if is_new:
                free[count] = place
                count += 1
    if not count:
        count = _find_free(moves, table.draft, operator, size)
    if count and size > 1:
        place = free[below(moves.random, count)]
        if place != REPLICATE:
            while size > 1 and not moves.fits[operator, place, size]:
                size -= 1
        if size > 1:
            add_axis(table, place, size, 1)
    return number_of(table, start)
