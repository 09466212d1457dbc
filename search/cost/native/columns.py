"""Arrays that grow, for tables that machine code reads."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

T = TypeVar("T", bound=np.generic)


class Column(Generic[T]):
    """An array whose rows are added at its end. ``rows``: of these and of free places."""

    def __init__(self, like: NDArray[T]) -> None:
        """``like``: an array of the type and width of a row, with any number of rows."""
        self.rows: NDArray[T] = np.zeros((1024, *like.shape[1:]), like.dtype)
        self.count = 0

    def extend(self, more: ArrayLike, count: int) -> None:
        """Add ``count`` rows."""
        end = self.count + count
        if end > len(self.rows):
            self.rows = enlarged(self.rows, self.count, max(end, 2 * len(self.rows)))
        if count:
            self.rows[self.count : end] = more
        self.count = end


def enlarged(rows: NDArray[T], count: int, size: int) -> NDArray[T]:
    """An array with ``size`` rows, of which ``count`` are those of another one."""
    bigger: NDArray[T] = np.zeros((size, *rows.shape[1:]), rows.dtype)
    bigger[:count] = rows[:count]
    return bigger


def numbers(*width: int) -> Column[np.int64]:
    """A column of whole numbers, or a table of so many columns."""
    return Column(np.zeros((0, *width), np.int64))


def seconds(*width: int) -> Column[np.float64]:
    """A column of seconds, or a table of so many columns."""
    return Column(np.zeros((0, *width), np.float64))
