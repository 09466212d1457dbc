"""The tables of ``native.states`` for the states of one graph."""

from __future__ import annotations

import numpy as np

from search.refine.mappings import NumberedMappings, passing_axes
from search.refine.native.states import ALONE, NO_PIECE, READ_BITS, StateTables
from search.refine.native.tables import ABSENT, GrowingHashTable, numbered_lists, pair
from search.refine.pieces import OperatorPieces
from search.refine.rows import TableRows


class StateRows:
    """What is known of the states of a graph. Rows of pieces are added to ``rows``."""

    def __init__(self, pieces: OperatorPieces, rows: TableRows) -> None:
        self.mappings = NumberedMappings()
        self._pieces, self._rows = pieces, rows
        self._lists, self._cuts = GrowingHashTable(), GrowingHashTable()
        self._used = np.zeros(1, np.int64)
        self._passes = passing_axes(pieces.nodes, pieces.builder.spaces)
        makers, leaves = pieces.makers, pieces.leaves
        operands = [
            [(leaves.get(v, ABSENT), *makers.get(v, (ABSENT, ABSENT))) for v in own]
            for own in pieces.reads
        ]
        self._first, _ = numbered_lists([range(len(own)) for own in operands])
        every = [operand for own in operands for operand in own]
        self._operands = np.array(every, np.int64).reshape(-1, 3)
        self._state = np.zeros(len(pieces.nodes), np.int64)
        self._tables: StateTables | None = None

    def tables(self) -> StateTables:
        """The tables as they are now."""
        tables = self._tables
        if tables is None or tables.mappings is not self.mappings.table:
            self._tables = tables = StateTables(
                self.mappings.table,
                self._passes,
                self._first,
                self._operands,
                self._lists.table,
                self._used,
                self._cuts.table,
                self._state,
            )
        return tables

    def make_room(self) -> None:
        """Make room for the lists of operands of one more state."""
        self._lists.make_room(int(self._used[0]) + len(self._operands))
        self._tables = None

    def add_piece(self, number: int, second: int) -> None:
        """Cut an operator. ``second``: its mapping and its operands, as they are numbered."""
        mapping, reads = second >> READ_BITS, second & (1 << READ_BITS) - 1
        assert mapping < 1 << READ_BITS, f"{mapping} mappings"
        (mapped,) = self.mappings.decoded(np.array([mapping]))
        read = None if reads == ALONE else self._read(number)
        piece = self._pieces.piece(number, mapped, read)
        row = NO_PIECE if piece is None else self._rows.row(number, piece)
        self._cuts.add(pair(number, second), row, 0)
        self._tables = None

    def _read(self, number: int) -> tuple[int, ...]:
        """The operands of an operator as they are read, after the pieces before it."""
        every, pieces = self._rows.pieces.every, self._state
        return tuple(
            leaf if leaf != ABSENT else every[pieces[maker]].outer[port]
            for leaf, maker, port in self._operands[slice(*self._first[number : number + 2])]
        )
