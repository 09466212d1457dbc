"""Random changes of the order of issue of a state.

An operator is issued earlier or later. Where others are in the way, because it reads their results
or they read its own, they move along. So each change leads to an order of issue, and each order can
be reached.

Complexity: the operators between the old place and the new one, and their operands and readers.
"""

from __future__ import annotations

from search.cost.native.compiled import compiled
from search.refine.native.random_mappings import MoveTables, new_mark
from search.refine.native.tables import Numbers
from search.refine.native.xorshift import below, fraction

NEARBY, FEW = 0.5, 4
"""The part of changes that lead to one of the next places, and the number of these."""


@compiled
def reissue(moves: MoveTables, operator: int, now: Numbers, other: Numbers) -> None:
    """Make ``other`` the order ``now`` with an operator at a random place. It may be equal."""
    random, place, last = moves.random, 0, len(now) - 1
    while now[place] != operator:
        place += 1
    if fraction(random) < NEARBY:
        least, most = max(0, place - FEW), min(last, place + FEW)
        target = least + below(random, most - least + 1)
    else:
        target = below(random, last + 1)
    _put(moves, place, target, now, other)


@compiled
def _put(moves: MoveTables, place: int, target: int, now: Numbers, other: Numbers) -> None:
    """Issue an operator at the place ``target``, after those between that it depends on, or before
    those that depend on it. These move along, in order."""
    marks, waiting, mark = moves.marks, moves.waiting, new_mark(moves)
    step = 1 if target > place else -1
    count, free = 0, place
    for at in range(place, target + step, step):
        operator = now[at]
        if at == place or _is_beside(moves, operator, mark):
            marks[operator] = mark
            waiting[count] = operator
            count += 1
        else:
            other[free] = operator
            free += step
    for at in range(count):
        other[free] = waiting[at]
        free += step


@compiled
def _is_beside(moves: MoveTables, operator: int, mark: int) -> bool:
    """Whether an operator reads the result of a marked one, or a marked one reads its own."""
    for edge in range(moves.first[operator], moves.first[operator + 1]):
        if moves.marks[moves.other[edge]] == mark:
            return True
    return False
