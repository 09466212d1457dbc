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

Seconds = NDArray[np.float64]

MAX_ENTRIES = 1 << 15
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
class Decision:
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
        self._tables = dict(enumerate(tables))
        self._next = len(tables)
        self._free = dict.fromkeys(free)
        self._with: dict[int, dict[int, None]] = {v: {} for v in free}
        for number, table in self._tables.items():
            for variable in table.variables:
                self._with.setdefault(variable, {})[number] = None
        self.decisions: list[Decision] = []

    def run(self) -> None:
        """Eliminate the free variables in the given order."""
        while self._free:
            self._eliminate(next(iter(self._free)))

    def run_smallest_first(self) -> None:
        """Eliminate the free variables, always the one that makes the smallest table."""
        while self._free:
            self._eliminate(min(self._free, key=self._entries))

    def rest(self) -> Table:
        """The sum of the tables that are left."""
        return add_tables(list(self._tables.values()))

    def _sizes(self, variable: int) -> dict[int, int]:
        """The variables that share a table with one, and itself, with their numbers of values."""
        return {
            v: size
            for number in self._with[variable]
            for v, size in zip(
                self._tables[number].variables, self._tables[number].seconds.shape[1:], strict=True
            )
        }

    def _entries(self, variable: int) -> int:
        return prod(self._sizes(variable).values())

    def _eliminate(self, variable: int) -> None:
        sizes = self._sizes(variable)
        while prod(sizes.values()) > MAX_ENTRIES:
            large = max((v for v in sizes if v in self._free), key=lambda v: sizes[v])
            self._fix(large)
            if large == variable:
                return
            sizes = self._sizes(variable)
        del self._free[variable]
        total = add_tables([self._take(number) for number in list(self._with[variable])])
        axis = total.variables.index(variable)
        given = total.variables[:axis] + total.variables[axis + 1 :]
        best, seconds = _minimise(total.seconds, axis + 1)
        self.decisions.append(Decision(variable, given, best))
        self._put(Table(given, seconds))

    def _fix(self, variable: int) -> None:
        """Set a variable to what is best if every table could choose the others by itself."""
        del self._free[variable]
        tables = [self._take(number) for number in list(self._with[variable])]
        score = 0.0
        for table in tables:
            axis = table.variables.index(variable)
            others = tuple(i for i in range(len(table.variables)) if i != axis)
            score = score + table.seconds[0].min(axis=others)
        best = np.asarray(np.argmin(score))
        self.decisions.append(Decision(variable, (), best))
        for table in tables:
            axis = table.variables.index(variable)
            given = table.variables[:axis] + table.variables[axis + 1 :]
            self._put(Table(given, table.seconds.take(int(best), axis=axis + 1)))

    def _take(self, number: int) -> Table:
        table = self._tables.pop(number)
        for variable in table.variables:
            del self._with[variable][number]
        return table

    def _put(self, table: Table) -> None:
        self._tables[self._next] = table
        for variable in table.variables:
            self._with[variable][self._next] = None
        self._next += 1


def add_tables(tables: Sequence[Table]) -> Table:
    """The sum of tables, over the variables of them all."""
    if len(tables) == 1:
        return tables[0]
    variables = tuple(sorted({v for table in tables for v in table.variables}))
    total: Seconds = np.zeros((2,) + (1,) * len(variables))
    for table in tables:
        total = total + aligned(table, variables)
    return Table(variables, total)


def aligned(table: Table, variables: tuple[int, ...]) -> Seconds:
    """The seconds of a table with an axis for each of ``variables``, of length 1 for new ones."""
    if table.variables == variables:
        return table.seconds
    sizes = dict(zip(table.variables, table.seconds.shape[1:], strict=True))
    return table.seconds.reshape((2, *(sizes.get(v, 1) for v in variables)))


def _minimise(seconds: Seconds, axis: int) -> tuple[NDArray[np.intp], Seconds]:
    """The position along an axis where the whole step is shortest, and the seconds there."""
    rest = seconds.shape[1:axis] + seconds.shape[axis + 1 :]
    last = len(seconds.shape) - 1
    moved = seconds.swapaxes(axis, last) if axis == last else _to_end(seconds, axis)
    flat = moved.reshape(2, -1, seconds.shape[axis])
    best = flat[0].argmin(axis=1)
    return best.reshape(rest), flat[:, _count(len(best)), best].reshape((2, *rest))


def _to_end(seconds: Seconds, axis: int) -> Seconds:
    axes = range(len(seconds.shape))
    return seconds.transpose(*(a for a in axes if a != axis), axis)


@lru_cache(maxsize=1024)
def _count(length: int) -> NDArray[np.intp]:
    return np.arange(length)
