"""The rows of the tables of ``search.refine.native`` for the pieces of one graph.

A row is added when a plan first needs it: the seconds of a resharding when a tensor first moves
between two slots, those of an exchange when a bucket first has so many bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from pcg.memo import Answers
from pcg.placement.layout import Piece
from pcg.placement.transfer import Groups
from search.cost.cost import NOTHING, Duration
from search.refine.native import listing
from search.refine.native.listing import UNKNOWN
from search.refine.native.tables import (
    ABSENT,
    BITS,
    Column,
    Durations,
    GrowingHashTable,
    Pieces,
    Shape,
    Slots,
    Tables,
    numbers,
    pair,
    seconds,
)
from search.refine.pieces import OperatorPiece, OperatorPieces, WantedOperand

WORD = 64
"""The devices in a word of a mask."""


class DurationRows:
    """The rows of durations. The same object has one row."""

    def __init__(self, devices: int) -> None:
        self._words = -(-devices // WORD)
        masks = np.zeros((0, self._words), np.uint64)
        self._rows, self._devices = numbers(4), numbers()
        self._seconds, self._shortest = seconds(), seconds()
        self._busy, self._busy_groups = Column(masks), Column(masks)
        self.every: list[Duration] = []
        """The durations by row."""
        self.row = Answers(self._add)
        """The row of a duration."""
        unknown = Duration(NOTHING.groups, NOTHING.seconds)
        assert [self.row[duration] for duration in (NOTHING, unknown)] == [listing.NOTHING, UNKNOWN]

    def _add(self, duration: Duration) -> int:
        groups, members = duration.groups.tolist(), duration.groups.shape[1]
        masks = [_mask(group) for group in groups]
        lists = self._seconds.count, len(groups), self._devices.count, members
        self._rows.extend([lists], 1)
        self._devices.extend(duration.groups.ravel(), duration.groups.size)
        self._seconds.extend(duration.seconds, len(groups))
        self._shortest.extend([duration.shortest], 1)
        self._busy.extend([self._words_of(sum(masks))], 1)  # no device is in two groups
        self._busy_groups.extend([self._words_of(mask) for mask in masks], len(groups))
        self.every.append(duration)
        return len(self.every) - 1

    def _words_of(self, mask: int) -> list[int]:
        return [mask >> WORD * word & (1 << WORD) - 1 for word in range(self._words)]

    def table(self) -> Durations:
        return Durations(
            self._rows.rows,
            self._devices.rows,
            self._seconds.rows,
            self._shortest.rows,
            self._busy.rows,
            self._busy_groups.rows,
        )


def _mask(devices: Sequence[int]) -> int:
    mask = 0
    for device in devices:
        mask |= 1 << device
    return mask


class PieceRows:
    """The rows of pieces."""

    def __init__(self, pieces: OperatorPieces, durations: DurationRows) -> None:
        self._pieces, self._durations = pieces, durations
        self._rows, self._operands = numbers(8), numbers(5)
        self._results, self._seconds = numbers(4), seconds(3)
        self._outputs = frozenset(pieces.outputs)
        self.every: list[OperatorPiece] = []
        """The pieces by row."""

    def add(self, number: int, piece: OperatorPiece) -> int:
        """Add the piece of an operator. Returns its row."""
        row, differentiated = self._durations.row, frozenset(piece.differentiated)
        operands = [
            (*_fields(wanted), position in differentiated)
            for position, wanted in enumerate(piece.operands)
        ]
        made = zip(self._pieces.makes[number], piece.results, piece.outer, strict=True)
        results = [(value, slot, self._left_in(value, outer), outer) for value, slot, outer in made]
        lists = (self._operands.count, len(operands), self._results.count, len(results))
        durations = (row[piece.forward], row[piece.backward], row[piece.late])
        self._rows.extend([(*lists, *durations, piece.passes)], 1)
        self._operands.extend(operands, len(operands))
        self._results.extend(results, len(results))
        taken = piece.forward_seconds, piece.backward_seconds, piece.late_seconds
        self._seconds.extend([taken], 1)
        self.every.append(piece)
        return len(self.every) - 1

    def _left_in(self, value: int, outer: int) -> int:
        """The slot in which a result is left as an output of the graph."""
        left = self._pieces.output(value, {value: outer}) if value in self._outputs else None
        return ABSENT if left is None else left.slot

    def table(self) -> Pieces:
        own, results = self._operands.rows, self._results.rows
        return Pieces(self._rows.rows, own, results, self._seconds.rows)


def _fields(wanted: WantedOperand) -> tuple[int, int, int, bool]:
    home = ABSENT if wanted.home is None else wanted.home
    return wanted.value, wanted.slot, home, wanted.is_input


class SlotRows:
    """The rows of slots, in the order of ``OperatorPieces.slots``."""

    def __init__(self, pieces: OperatorPieces, durations: DurationRows) -> None:
        self._pieces, self._durations, self._cost = pieces, durations, pieces.cost
        self._rows, self._sum_seconds = numbers(6), seconds()
        self._groups: dict[Groups, int] = {}
        self._piece_sets: dict[frozenset[tuple[int, Piece]], int] = {}
        self._sums: dict[object, float] = {}

    def complete(self) -> None:
        """Add the rows of slots that are new."""
        slots, trained = self._pieces.slots, self._pieces.is_trained
        assert len(slots) < 1 << 63 - BITS, f"{len(slots)} slots"
        for number in range(self._rows.count, len(slots)):
            is_weight = slots[number][0].node.is_weight
            own = self._weight(number) if is_weight else (0, ABSENT, 0, 0, 0)
            self._rows.extend([(trained[number], *own)], 1)
            self._sum_seconds.extend([self._of_sum(number)], 1)

    def _of_sum(self, number: int) -> float:
        """Seconds of adding one more gradient of a tensor."""
        layout, machine = self._pieces.slots[number][1], self._cost.machine
        kinds = () if len(machine.kinds) == 1 else tuple(machine.kinds_of(layout.devices))
        key = prod(layout.type.block), tuple(map(id, kinds))
        if key not in self._sums:
            self._sums[key] = self._cost.sums([layout], [2])
        return self._sums[key]

    def _weight(self, number: int) -> tuple[int, int, int, int, int]:
        """For a weight: the bytes of a gradient, the number of the groups that exchange it, the
        durations of its exchange alone and of its update, and the number of its pieces."""
        layout, row = self._pieces.slots[number][1], self._durations.row
        block, groups = self._cost.gradient_exchange(layout)
        sync, update = self._cost.weight(layout)
        which = self._groups.setdefault(groups, len(self._groups)) if groups else ABSENT
        pieces = self._piece_sets.setdefault(frozenset(layout.pieces), len(self._piece_sets))
        return block, which, row[sync], row[update], pieces

    def table(self) -> Slots:
        return Slots(self._rows.rows, self._sum_seconds.rows)


class TableRows:
    """All tables for the plans of one graph."""

    def __init__(self, pieces: OperatorPieces) -> None:
        self._pieces = pieces
        self.durations = DurationRows(pieces.cost.machine.devices)
        self.pieces = PieceRows(pieces, self.durations)
        self._slots = SlotRows(pieces, self.durations)
        self._moves, self._shared = GrowingHashTable(), GrowingHashTable()
        self._shape = _shape(pieces)
        self._rows: dict[OperatorPiece, int] = {}
        self._tables: Tables | None = None
        """All tables, unless a row was added since."""

    def row(self, number: int, piece: OperatorPiece) -> int:
        """The row of the piece of an operator."""
        row = self._rows.get(piece)
        if row is None:
            row = self._rows[piece] = self.pieces.add(number, piece)
            self._tables = None
        return row

    def add_move(self, source: int, target: int) -> None:
        """Price the resharding between two slots."""
        movement, row = self._pieces.moves[source, target], self.durations.row
        ends = (ABSENT, ABSENT) if movement is None else (row[movement[0]], row[movement[1]])
        self._moves.add(pair(source, target), *ends)
        self._tables = None

    def add_shared(self, slot: int, together: int) -> None:
        """Price the exchange of a weight's gradient, in a bucket of so many bytes."""
        assert together < 1 << BITS, f"a bucket of {together} bytes"
        sync, _ = self._pieces.cost.weight(self._pieces.slots[slot][1], together)
        self._shared.add(pair(slot, together), self.durations.row[sync], 0)
        self._tables = None

    def tables(self) -> Tables:
        """The tables as they are now."""
        if self._tables is None:
            self._slots.complete()
            self._tables = Tables(
                self._shape,
                self.durations.table(),
                self.pieces.table(),
                self._slots.table(),
                self._moves.table,
                self._shared.table,
            )
        return self._tables


def _shape(pieces: OperatorPieces) -> Shape:
    """What all plans of a graph have in common."""
    makers = pieces.makers
    edges = [
        [(*makers[value], at) for at, value in enumerate(values) if value in makers]
        for values in pieces.reads
    ]
    outputs: list[tuple[int, ...]] = []
    for value in pieces.outputs:
        wanted = None if value in makers else pieces.output(value, {})
        maker = makers.get(value, (ABSENT, ABSENT))
        leaf = (ABSENT, ABSENT, False) if wanted is None else _fields(wanted)[1:]
        outputs.append((value, *maker, *leaf))
    return Shape(
        pieces.cost.machine.devices,
        np.cumsum([0, *map(len, edges)]),
        np.array([edge for own in edges for edge in own], np.int64).reshape(-1, 3),
        np.array(pieces.is_weight, np.int64),
        np.array(outputs, np.int64).reshape(-1, 6),
        pieces.has_loss,
    )
