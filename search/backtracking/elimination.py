"""Minimal sums of tables by variable elimination: dynamic programming over several variables.

A table gives seconds for each choice of its variables. Eliminating a variable adds the tables that
depend on it and keeps, for every choice of the others, the best value of it. Along a chain this is
the usual dynamic programme, one variable at a time (Bertele and Brioschi, 1972).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from search.backtracking.views import MAX_VIEWS

Seconds = NDArray[np.float64]

FEW = 5
"""So many variables are never too many for one table."""

MAX_ENTRIES = MAX_VIEWS**FEW
"""Larger tables are not made: a variable is set to what looks best instead."""


@dataclass(frozen=True, eq=False)
class Table:
    """Seconds by choice of some variables.

    The first axis of ``seconds`` is 0 for the whole step and 1 for its forward part; then one
    axis for each of ``variables``, which are in ascending order. Sums are minimal in the former.
    """

    variables: tuple[int, ...]
    seconds: Seconds


@dataclass(frozen=True, eq=False)
class BestChoice:
    """The best choice of a variable for each choice of others."""

    variable: int
    given: tuple[int, ...]
    best: NDArray[np.intp]

    def choose(self, chosen: Mapping[int, int]) -> int:
        return int(self.best[tuple(chosen[v] for v in self.given)])


class Elimination:
    """Tables, of which variables are eliminated one after the other."""

    def __init__(self, tables: Sequence[Table], free: Sequence[int]) -> None:
        """``free`` are the variables that will be eliminated."""
        self._tables: dict[Table, None] = {}
        self._free = dict.fromkeys(free)
        self._with: dict[int, dict[Table, None]] = {v: {} for v in free}
        self.decisions: list[BestChoice] = []
        for table in tables:
            self._put(table)

    def run(self) -> None:
        """Eliminate the free variables in the given order."""
        while self._free:
            self._eliminate(next(iter(self._free)))

    def run_smallest_first(self) -> None:
        """Eliminate the free variables, always the one that makes the smallest table."""
        while self._free:
            self._eliminate(min(self._free, key=lambda v: prod(self._sizes(v).values())))

    def rest(self) -> Table:
        """The sum of the tables that are left."""
        return add_tables(list(self._tables))

    def _sizes(self, variable: int) -> dict[int, int]:
        """The variables that share a table with one, and itself, with their numbers of values."""
        return {
            v: size
            for table in self._with[variable]
            for v, size in zip(table.variables, table.seconds.shape[1:], strict=True)
        }

    def _is_large(self, variable: int) -> bool:
        if sum(len(table.variables) for table in self._with[variable]) <= FEW:
            return False
        return prod(self._sizes(variable).values()) > MAX_ENTRIES

    def _eliminate(self, variable: int) -> None:
        while self._is_large(variable):
            sizes = self._sizes(variable)
            large = max((v for v in sizes if v in self._free), key=lambda v: sizes[v])
            self._fix(large)
            if large == variable:
                return
        del self._free[variable]
        total = add_tables(self._take(variable))
        axis = total.variables.index(variable)
        given = total.variables[:axis] + total.variables[axis + 1 :]
        best, seconds = _minimise(total.seconds, axis + 1)
        self.decisions.append(BestChoice(variable, given, best))
        self._put(Table(given, seconds))

    def _fix(self, variable: int) -> None:
        """Set a variable to what is best if every table could choose the others by itself."""
        del self._free[variable]
        tables = self._take(variable)
        score = np.zeros(1)
        for table in tables:
            axis = table.variables.index(variable)
            others = tuple(i for i in range(len(table.variables)) if i != axis)
            score = score + table.seconds[0].min(axis=others)
        best = np.asarray(np.argmin(score))
        self.decisions.append(BestChoice(variable, (), best))
        for table in tables:
            axis = table.variables.index(variable)
            given = table.variables[:axis] + table.variables[axis + 1 :]
            self._put(Table(given, np.asarray(table.seconds.take(int(best), axis=axis + 1))))

    def _take(self, variable: int) -> list[Table]:
        """Remove the tables that depend on a variable."""
        tables = list(self._with[variable])
        for table in tables:
            del self._tables[table]
            for other in table.variables:
                if other in self._with:
                    del self._with[other][table]
        return tables

    def _put(self, table: Table) -> None:
        self._tables[table] = None
        for variable in table.variables:
            if variable in self._with:
                self._with[variable][table] = None


def add_tables(tables: Sequence[Table]) -> Table:
    """The sum of tables, over the variables of them all."""
    if not tables:
        return Table((), np.zeros(2))
    variables = tables[0].variables
    if any(table.variables != variables for table in tables):
        variables = tuple(sorted({v for table in tables for v in table.variables}))
    total = aligned(tables[0], variables)
    for table in tables[1:]:
        total = total + aligned(table, variables)
    return Table(variables, total)


def aligned(table: Table, variables: tuple[int, ...]) -> Seconds:
    """The seconds of a table with an axis for each of ``variables``, of length 1 for new ones."""
    if table.variables == variables:
        return table.seconds
    own = table.variables
    return table.seconds[(_ALL, *[_ALL if v in own else None for v in variables])]


_ALL = slice(None)


def _minimise(seconds: Seconds, axis: int) -> tuple[NDArray[np.intp], Seconds]:
    """The position along an axis where the whole step is shortest, and the seconds there."""
    moved = seconds.transpose(_to_end(seconds.ndim, axis))
    flat = moved.reshape(2, -1, seconds.shape[axis])
    best = flat[0].argmin(axis=1)
    rest = moved.shape[1:-1]
    return best.reshape(rest), flat[:, _count(len(best)), best].reshape((2, *rest))


@lru_cache(maxsize=1024)
def _to_end(axes: int, axis: int) -> tuple[int, ...]:
    return (*(a for a in range(axes) if a != axis), axis)


@lru_cache(maxsize=1024)
def _count(length: int) -> NDArray[np.intp]:
    return np.arange(length)
