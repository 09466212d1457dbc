"""The rows of the tables of ``search.refine.native``, which all graphs with the same spaces share.

A row is added when a plan first needs it: the seconds of a resharding when a tensor first moves
between two layouts, those of an exchange when a bucket first has so many bytes.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from pcg.memo import Answers, Numbering
from pcg.placement.transfer import Groups
from search.cost.cost import NOTHING, Duration
from search.cost.native.columns import enlarged, numbers, seconds
from search.cost.native.messages import CellRows, MessageTables, no_messages
from search.refine.layouts import NumberedLayouts
from search.refine.mappings import NumberedMappings
from search.refine.native import listing
from search.refine.native.listing import UNKNOWN
from search.refine.native.states import NO_PIECE
from search.refine.native.tables import (
    ABSENT,
    BITS,
    DURATIONS,
    VIA,
    Durations,
    GrowingHashTable,
    HashTable,
    Layouts,
    Numbers,
    Pieces,
    add_duration,
    add_moved,
    has_room,
    pair,
)
from search.refine.pieces import MovedPiece, OperatorPiece, OperatorPieces, WantedOperand

WORD = 64
"""The devices in a word of a mask."""
FIRST_ROOM = 1024
"""The durations, groups and devices for which there is room at first."""


class DurationRows:
    """The rows of durations. The same object has one row. Machine code may add rows."""

    def __init__(self, devices: int) -> None:
        self._table = _no_durations(-(-devices // WORD))
        self.row = Answers(self._add)
        """The row of a duration."""
        self.duration = Answers(self._read)
        """The duration of a row."""
        self.moved = Answers(self._move)
        """The row of a duration, given by its row, on devices whose numbers are higher by some
        number."""
        unknown = Duration(NOTHING.groups, NOTHING.seconds)
        assert [self.row[duration] for duration in (NOTHING, unknown)] == [listing.NOTHING, UNKNOWN]

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self._table.used[DURATIONS])

    def _add(self, duration: Duration) -> int:
        groups = np.ascontiguousarray(duration.groups)
        count, members = groups.shape
        if not has_room(self._table, count, groups.size):
            self._make_room(count, groups.size)
        row = add_duration(self._table, groups, np.ascontiguousarray(duration.seconds), members)
        self.duration[row] = duration
        return row

    def _move(self, row_by: tuple[int, int]) -> int:
        row, by = row_by
        _, groups, _, width = self._table.rows[row].tolist()
        if not groups or not by:
            return row
        if not has_room(self._table, groups, groups * width):
            self._make_room(groups, groups * width)
        return add_moved(self._table, row, by)

    def _make_room(self, groups: int, devices: int) -> None:
        """Make room for one more row, with so many groups and devices, and for many others."""
        table = self._table
        durations, all_groups, all_devices = table.used.tolist()
        by_row = durations, FIRST_ROOM + 2 * durations
        by_group = all_groups, FIRST_ROOM + 2 * all_groups + groups
        by_device = all_devices, FIRST_ROOM + 2 * all_devices + devices
        self._table = Durations(
            enlarged(table.rows, *by_row),
            enlarged(table.devices, *by_device),
            enlarged(table.seconds, *by_group),
            enlarged(table.shortest, *by_row),
            enlarged(table.busy, *by_row),
            enlarged(table.busy_groups, *by_group),
            table.used,
        )

    def _read(self, row: int) -> Duration:
        """The duration of a row that machine code added."""
        table = self._table
        group, groups, device, width = table.rows[row].tolist()
        devices = table.devices[device : device + groups * width]
        seconds = table.seconds[group : group + groups]
        return Duration(devices.reshape(groups, width).copy(), seconds.copy())

    def table(self) -> Durations:
        """The rows as they are now."""
        return self._table


def _no_durations(words: int) -> Durations:
    """A table without durations. ``words``: those of a mask."""
    return Durations(
        np.zeros((0, 4), np.int64),
        np.zeros(0, np.int64),
        np.zeros(0),
        np.zeros(0),
        np.zeros((0, words), np.uint64),
        np.zeros((0, words), np.uint64),
        np.zeros(3, np.int64),
    )


class PieceRows:
    """The rows of pieces."""

    def __init__(self, layouts: NumberedLayouts, durations: DurationRows) -> None:
        self._layouts, self._durations = layouts, durations
        self._rows, self._operands = numbers(8), numbers(4)
        self._results, self._seconds = numbers(3), seconds(3)
        self.every: list[OperatorPiece] = []
        """The pieces by row, on any devices."""
        self.row = Answers(self._add)
        """The row of a piece that was moved."""

    def _add(self, given: MovedPiece) -> int:
        (piece, by), moved = given, self._layouts.moved
        passed = frozenset(piece.differentiated)
        wanted = (self.moved(own, by) for own in piece.operands)
        operands = [
            (own.layout, _number(own.home), own.is_input, position in passed)
            for position, own in enumerate(wanted)
        ]
        made = zip(piece.results, piece.left, piece.outer, strict=True)
        results = [(moved[layout, by], _number(left), outer) for layout, left, outer in made]
        lists = (self._operands.count, len(operands), self._results.count, len(results))
        durations = [
            self._duration_row(own, by) for own in (piece.forward, piece.backward, piece.late)
        ]
        self._rows.extend([(*lists, *durations, piece.passes)], 1)
        self._operands.extend(operands, len(operands))
        self._results.extend(results, len(results))
        late = piece.late.shortest
        taken = piece.forward.shortest, piece.backward.shortest - late, late
        self._seconds.extend([taken], 1)
        self.every.append(piece)
        return len(self.every) - 1

    def moved(self, wanted: WantedOperand, by: int) -> WantedOperand:
        """An operand on devices whose numbers are higher by some number."""
        moved, home = self._layouts.moved, wanted.home
        if home is not None and not wanted.is_fixed:
            home = moved[home, by]
        return wanted._replace(layout=moved[wanted.layout, by], home=home)

    def _duration_row(self, duration: Duration, by: int) -> int:
        return self._durations.moved[self._durations.row[duration], by]

    def table(self) -> Pieces:
        own, results = self._operands.rows, self._results.rows
        return Pieces(self._rows.rows, own, results, self._seconds.rows)


def _number(number: int | None) -> int:
    return ABSENT if number is None else number


class LayoutRows:
    """The rows of layouts, in the order of their numbers."""

    def __init__(self, pieces: OperatorPieces, durations: DurationRows) -> None:
        self._layouts, self._durations = pieces.layouts, durations
        self._cost, self._cells = pieces.cost, CellRows()
        self._few = pieces.cost.messages.few
        self._rows, self._places, self._sum_seconds = numbers(5), numbers(2), seconds()
        self._groups, self._piece_sets = Numbering[Groups](), Numbering[frozenset[object]]()
        self._elements = Answers(self._elements_of)
        self._of_weights = set[int]()

    def complete(self) -> None:
        """Add the rows of layouts that are new."""
        new = self._layouts.places[self._rows.count :]
        if not new:
            return
        assert len(self._layouts.places) < 1 << 63 - BITS, f"{len(self._layouts.places)} layouts"
        sums = [self._of_sum(*place) for place in new]
        self._rows.extend([(0, ABSENT, 0, 0, 0)], len(new))
        self._places.extend(new, len(new))
        self._sum_seconds.extend(sums, len(new))
        if self._few is not None:
            for shape in self._layouts.shapes[len(self._cells) :]:
                self._cells.add(shape)

    def price_weight(self, number: int) -> None:
        """Price the exchange and the update of a weight of some layout."""
        if number in self._of_weights:
            return
        self.complete()
        self._of_weights.add(number)
        layout, row = self._layouts.layout[number], self._durations.row
        block, groups = self._cost.gradient_exchange(layout)
        sync, update = self._cost.weight(layout)
        which = self._groups[groups] if groups else ABSENT
        held = self._piece_sets[frozenset[object](layout.pieces)]
        self._rows.rows[number] = block, which, row[sync], row[update], held

    def _of_sum(self, shape: int, start: int) -> float:
        """Seconds of adding one more gradient of a tensor."""
        devices = (start + device for device in self._layouts.shapes[shape].devices)
        return self._cost.adding(self._elements[shape], devices)

    def _elements_of(self, shape: int) -> int:
        """The elements of a block."""
        return prod(self._layouts.shapes[shape].type.block)

    def table(self) -> Layouts:
        return Layouts(self._rows.rows, self._places.rows, self._sum_seconds.rows)

    def messages(self) -> MessageTables:
        """The tables for messages between them."""
        return no_messages() if self._few is None else self._few.tables(self._cells)


class SharedTables(NamedTuple):
    """The tables that are the same for all graphs (``native.tables``, ``native.states``)."""

    durations: Durations
    pieces: Pieces
    layouts: Layouts
    moves: HashTable
    moved: Numbers
    messages: MessageTables
    shared: HashTable
    lists: HashTable
    used: Numbers
    cuts: HashTable


class TableRows:
    """All rows. ``mappings``: the numbers of mappings."""

    def __init__(self, pieces: OperatorPieces) -> None:
        self.operators, self.mappings = pieces, NumberedMappings()
        self.durations = DurationRows(pieces.cost.machine.devices)
        self.pieces = PieceRows(pieces.layouts, self.durations)
        self._layouts = LayoutRows(pieces, self.durations)
        self._moves, self._shared = GrowingHashTable(), GrowingHashTable()
        self._lists, self._cuts = GrowingHashTable(), GrowingHashTable()
        self._used = np.zeros(1, np.int64)
        self._tables: SharedTables | None = None
        """All tables, unless a row was added since."""

    def add_piece(self, kind: int, second: int, piece: MovedPiece | None) -> None:
        """Add the piece of operators of a kind. ``second``: the mapping and the operands, as they
        are numbered."""
        row = NO_PIECE if piece is None else self.pieces.row[piece]
        if piece is not None:
            for wanted in piece.piece.weights:
                self.price_leaf(self.pieces.moved(wanted, piece.by))
        self._cuts.add(pair(kind, second), row, 0)
        self._tables = None

    def price_leaf(self, wanted: WantedOperand) -> None:
        """Price the exchange and the update of a weight, as it is stored and as it is wanted."""
        for layout in (wanted.home, wanted.layout):
            if layout is not None:
                self._layouts.price_weight(layout)

    def add_move(self, source: int, target: int) -> None:
        """Price the resharding between two layouts, or find that it is made of two."""
        self._moves.add(pair(source, target), *self._moved(source, target))
        self._tables = None

    def _moved(self, source: int, target: int) -> tuple[int, int]:
        """See ``Tables.moves``."""
        between = self.operators.between[source, target]
        if between is not None:
            return VIA, between
        movement, row = self.operators.moves[source, target], self.durations.row
        return (ABSENT, ABSENT) if movement is None else (row[movement[0]], row[movement[1]])

    def add_shared(self, layout: int, together: int) -> None:
        """Price the exchange of a weight's gradient, in a bucket of so many bytes."""
        assert together < 1 << BITS, f"a bucket of {together} bytes"
        sync, _ = self.operators.cost.weight(self.operators.layouts.layout[layout], together)
        self._shared.add(pair(layout, together), self.durations.row[sync], 0)
        self._tables = None

    def make_room(self, lists: int) -> None:
        """Make room for so many more lists of operands."""
        self._lists.make_room(int(self._used[0]) + lists)
        self._tables = None

    def tables(self) -> SharedTables:
        """The tables as they are now: the same object if no row was added since."""
        if self._tables is None:
            self._layouts.complete()
            self._tables = SharedTables(
                self.durations.table(),
                self.pieces.table(),
                self._layouts.table(),
                self._moves.table,
                self._moves.used,
                self._layouts.messages(),
                self._shared.table,
                self._lists.table,
                self._used,
                self._cuts.table,
            )
        return self._tables
