"""Numbers of rows of a large table that has few different rows.

Problem: millions of rows come in parts, and a few thousand of them are different. Each different
row gets a number, the same in all parts.

Method: a table of slots by hash holds the number of at most one known row each. The row of that
number is compared with the new row, so a collision of hashes costs time and changes no number. Rows
that are not found so are sorted. Their numbers are looked up in a dictionary. Exact. A known row
takes a few look-ups, where sorting takes several comparisons of all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Keys = tuple[NDArray[np.generic], ...]
"""The columns of a table."""

SLOT_BITS = 18
"""The number of slots is 2 to this power: many times the number of different rows."""
FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
"""Odd multipliers, one for each column. The upper bits of the sum of products are the hash."""


class KeyNumbers:
    """The numbers of the different rows so far."""

    def __init__(self) -> None:
        self._known: dict[tuple[float, ...], int] = {}
        self._slots = np.zeros(1 << SLOT_BITS, np.int32)
        """By hash, the place of a row in ``_rows``."""
        self._rows = np.full((len(FACTORS), 64), np.nan)
        """[columns, places]: the different rows. At place 0 is a row that equals none."""
        self._numbers = np.zeros(64, np.uint32)
        """The number of the row at each place."""

    def numbers(self, keys: Keys, number: Callable[[tuple[float, ...]], int]) -> NDArray[np.uint32]:
        """[rows]: the number of each row. ``number``: a function that gives a new row its
        number."""
        columns = [np.asarray(column, np.float64) for column in keys]
        slots = _slots(columns)
        places = self._slots[slots]
        matches = np.ones(len(places), bool)
        for known, column in zip(self._rows, columns, strict=True):
            matches &= known[places] == column
        found = self._numbers[places]
        if not matches.all():
            rest = np.flatnonzero(~matches)
            found[rest] = self._added([column[rest] for column in columns], slots[rest], number)
        return found

    def _added(
        self,
        columns: Sequence[NDArray[np.float64]],
        slots: NDArray[np.intp],
        number: Callable[[tuple[float, ...]], int],
    ) -> NDArray[np.uint32]:
        """[rows]: the numbers of rows whose slots hold no row or another one."""
        first, inverse = _different(columns)
        rows = np.stack([column[first] for column in columns], axis=1)
        numbers: list[int] = []
        for at, row in enumerate(map(tuple, rows.tolist())):
            if row not in self._known:
                self._known[row] = number(row)
                self._hold(row, int(slots[first[at]]))
            numbers.append(self._known[row])
        return np.array(numbers, np.uint32)[inverse]

    def _hold(self, row: tuple[float, ...], slot: int) -> None:
        """Hold a new row in its slot."""
        place = len(self._known)
        if place >= len(self._numbers):
            self._rows = np.concatenate([self._rows, np.full_like(self._rows, np.nan)], axis=1)
            self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])
        self._rows[:, place], self._numbers[place] = row, self._known[row]
        self._slots[slot] = place


def _slots(columns: Sequence[NDArray[np.float64]]) -> NDArray[np.intp]:
    """[rows]: the slot of each row."""
    total = np.zeros(len(columns[0]), np.uint64)
    for column, factor in zip(columns, FACTORS, strict=True):
        # The lowest bits of a number with few digits are zeros, and a product moves bits upwards.
        bits = np.ascontiguousarray(column).view(np.uint64)
        total += (bits ^ (bits >> np.uint64(32))) * np.uint64(factor)
    return (total >> np.uint64(64 - SLOT_BITS)).astype(np.intp)


def _different(
    columns: Sequence[NDArray[np.float64]],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The position of the first of each different row, and for each row its place among them. A
    column has few different numbers, so each row is coded as one number. Numbers are sorted faster
    than rows."""
    row = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = np.unique(column)
        row = row * len(values) + np.searchsorted(values, column)
    _, first, inverse = np.unique(row, return_index=True, return_inverse=True)
    return first, inverse
