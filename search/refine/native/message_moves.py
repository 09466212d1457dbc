"""The seconds of reshardings to devices that do not have the tensor, where a plan needs them.

Most reshardings of random plans are of this kind. They are messages (``Transfer.kind``), whatever
the pieces are, so they can be priced without leaving machine code.

Complexity: that of ``search.cost.native.messages``. Exact.
"""

from __future__ import annotations

from search.cost.native.compiled import compiled
from search.cost.native.messages import (
    DEVICE,
    FIRST_PIECE,
    PARTIALS,
    PIECES,
    MessageTables,
    find_busy,
)
from search.refine.native.listing import (
    AHEAD,
    LAYOUT,
    OPERAND,
    PIECE,
    RESHARDING,
    RESULT,
    STEPS,
    UNKNOWN,
    Listing,
)
from search.refine.native.tables import (
    ABSENT,
    Durations,
    HashTable,
    Numbers,
    Tables,
    add_duration,
    has_room,
    pair,
    place_of,
)


@compiled
def price_missing(tables: Tables, made: Listing) -> bool:
    """Price the reshardings of a plan that are missing in the tables. Whether any was priced."""
    is_any = False
    for step in range(made.counts[STEPS]):
        row = made.steps[step]
        if row[PIECE] == RESHARDING and row[AHEAD] == UNKNOWN:
            source = int(made.slots[made.operands[row[OPERAND]], LAYOUT])
            target = int(made.slots[made.results[row[RESULT]], LAYOUT])
            is_any = (
                price_messages(
                    tables.moves,
                    tables.moved,
                    tables.durations,
                    tables.layouts.places,
                    tables.messages,
                    source,
                    target,
                )
                or is_any
            )
    return is_any


@compiled
def price_messages(
    moves: HashTable,
    moved: Numbers,
    durations: Durations,
    places: Numbers,
    messages: MessageTables,
    source: int,
    target: int,
) -> bool:
    """Add the resharding between two layouts to ``moves``. False if it is there, if it is none of
    those that this module prices, or if there is no room. All tables: see ``Tables``; ``places``:
    see ``Layouts``."""
    key = pair(source, target)
    place, is_full = place_of(moves, key), 2 * (moved[0] + 1) > len(moves)
    if (
        is_full
        or moves[place, 0] != ABSENT
        or not _is_known(messages, places[source], places[target])
    ):
        return False
    find_busy(messages, places[source, 0], places[source, 1], places[target, 0], places[target, 1])
    room, count = messages.room, 0
    longest = 0.0
    for device in range(len(room.busy)):
        if room.busy[device] > 0.0:
            room.members[0, count] = device
            count += 1
            longest = max(longest, room.busy[device])
    if not count or not has_room(durations, 1, count):
        return False
    room.longest[0] = longest
    row = add_duration(durations, room.members, room.longest, count)
    moves[place, 0], moves[place, 1], moves[place, 2] = key, row, row
    moved[0] += 1
    return True


@compiled
def _is_known(messages: MessageTables, one: Numbers, other: Numbers) -> bool:
    """Whether a resharding is by messages for its devices alone, and not made of two
    (``layout_of_sums``). ``one`` and ``other``: the shapes of both ends, and their lowest
    devices."""
    source, target, by = one[0], other[0], other[1] - one[1]
    cells, held = messages.cells, messages.room.held
    if not messages.links.height or cells.rows[source, PARTIALS] != cells.rows[target, PARTIALS]:
        return False
    held[:] = ABSENT
    first = cells.rows[source, FIRST_PIECE]
    for piece in range(first, first + cells.rows[source, PIECES]):
        held[cells.pieces[piece, DEVICE]] = 1
    first = cells.rows[target, FIRST_PIECE]
    for piece in range(first, first + cells.rows[target, PIECES]):
        device = cells.pieces[piece, DEVICE] + by
        if device < 0 or device >= len(held) or held[device] == ABSENT:
            return True
    return False
