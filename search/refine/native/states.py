"""The pieces of the operators of a state (``search.refine.pieces``), and the seconds of its plan.

A piece depends on the kind of the operator and its mapping. If partial sums may pass through the
operator, it also depends on the forms of its operands. A list of these is known by a number: that
of the list without the last operand, and that operand, are looked up.

Complexity: the operators, and the operands of those through which partial sums pass; then that of
``timing``.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from search.cost.native.compiled import compiled, inlined
from search.refine.native.listing import CUT, FIRST, MISSING, SECOND
from search.refine.native.mappings import AXES, FIRST_AXIS, ISSUED, MAPPED, MappingTable
from search.refine.native.tables import (
    ABSENT,
    FIRST_RESULT,
    OUTER,
    HashTable,
    Numbers,
    Tables,
    pair,
    place_of,
)
from search.refine.native.timing import Scratch, plan_seconds

ALONE = 0
"""The number of the empty list, and of the operands of an operator through which nothing passes."""
READ_BITS = 21
"""The bits of a number of operands in a key."""
NO_PIECE = -2
"""The piece of an operator that has none, and the seconds of a state with such an operator."""


class StateTables(NamedTuple):
    """What is known of states."""

    mappings: MappingTable
    kinds: Numbers
    """[operators]: the number of each one's kind."""
    passes: Numbers
    """[operators, axes]: whether an axis stands for partial sums that pass through."""
    first: Numbers
    """[operators + 1]: the first operand of each operator."""
    operands: Numbers
    """[operands, 3]: for a leaf, the number of its form, else ABSENT; the maker and its port."""
    lists: HashTable
    """For a list of operands and one more (``pair``): the number of the longer list, and 0."""
    used: Numbers
    """[1]: the number of lists."""
    cuts: HashTable
    """For a kind, and the numbers of a mapping and of operands (``pair``): the piece or NO_PIECE,
    and 0."""
    pieces: Numbers
    """[operators]: those of the state that is looked at."""


@compiled
def find_pieces(tables: Tables, states: StateTables, mapped: Numbers, count: Numbers) -> int:
    """Find the pieces of operators. ``mapped``: the numbers of their mappings. Returns 0, or ABSENT
    if one is missing (see ``Listing.counts``), or NO_PIECE if an operator has none. There must be
    room for all lists of operands."""
    for operator in range(len(mapped)):
        mapping = mapped[operator]
        reads = ALONE
        if _lets_pass(states, operator, mapping):
            reads = _reads(tables, states, operator)
        second = (mapping << READ_BITS) | reads
        key = pair(states.kinds[operator], second)
        place = place_of(states.cuts, key)
        if states.cuts[place, 0] != key:
            count[MISSING], count[FIRST], count[SECOND] = CUT, operator, second
            return ABSENT
        piece = states.cuts[place, 1]
        if piece == NO_PIECE:
            return NO_PIECE
        states.pieces[operator] = piece
    return 0


@inlined
def _lets_pass(states: StateTables, operator: int, mapping: int) -> bool:
    """Whether partial sums pass through an operator that is cut like this."""
    row = states.mappings.rows[mapping]
    for at in range(row[AXES]):
        place = row[FIRST_AXIS + 3 * at]
        if place >= 0 and states.passes[operator, place]:
            return True
    return False


@inlined
def _reads(tables: Tables, states: StateTables, operator: int) -> int:
    """The number of the forms of an operator's operands, after the pieces before it."""
    known, pieces = ALONE, tables.pieces
    for at in range(states.first[operator], states.first[operator + 1]):
        read = states.operands[at, 0]
        if read == ABSENT:
            maker = states.pieces[states.operands[at, 1]]
            result = pieces.rows[maker, FIRST_RESULT] + states.operands[at, 2]
            read = pieces.results[result, OUTER]
        key = pair(known, read)
        place = place_of(states.lists, key)
        if states.lists[place, 0] != key:
            states.used[0] += 1
            states.lists[place, 0], states.lists[place, 1] = key, states.used[0]
        known = int(states.lists[place, 1])
    return known


@compiled
def state_seconds(
    tables: Tables, states: StateTables, scratch: Scratch, state: Numbers, limit: float
) -> float:
    """Seconds of a step of the plan of a state; inf if they are no less than ``limit``, ABSENT if
    something is missing in the tables, and NO_PIECE if an operator has no piece."""
    known = find_pieces(tables, states, state[MAPPED], scratch.made.counts)
    if known:
        return float(known)
    seconds = plan_seconds(tables, states.pieces, state[ISSUED], limit, scratch)
    return seconds if seconds < limit else inf
