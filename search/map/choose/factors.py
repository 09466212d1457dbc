"""The least sum of tables over finitely many choices, by variable elimination.

Problem: each variable has finitely many values, and tables of a few variables each add up to a sum
to be made least.

Method: eliminating a variable adds the tables that it is in and keeps, for every choice of the
other variables in these, its best value (Bertele and Brioschi, Nonserial Dynamic Programming,
1972). The next to go is the one whose table is least. Along chains and branches that join again,
tables stay small; time and memory are those of the largest table, which is exponential in the
variables that it has.

The least sum is exact, to a picosecond for each table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np
from numpy.typing import NDArray

from search.cost.progress import check_time

Values = NDArray[np.float64]
UNIT = 1e-12
"""Seconds that sums are counted in."""


@dataclass(frozen=True, eq=False)
class Factor:
    """A sum's part: one axis of ``values``, which count ``times``, for each of ``variables``, which
    ascend. Factors of blocks that are alike share one array, and what is derived of it is worked
    out once."""

    variables: tuple[int, ...]
    values: Values | NDArray[np.float32]
    times: float = 1.0

    @property
    def table(self) -> tuple[int, float]:
        """The same for factors that share an array and count as much, as long as they live."""
        return id(self.values), self.times

    @property
    def scaled(self) -> Values:
        """The values as they count."""
        return self.values.astype(np.float64) * self.times


@dataclass(frozen=True, eq=False)
class PairTable:
    """Values by all pairs of the choices of two sides, such as who makes a tensor and who reads
    it. Held for both orders, as variables of a factor ascend, and once for all that are alike."""

    forth: NDArray[np.float32]
    back: NDArray[np.float32]

    @staticmethod
    def of(values: NDArray[np.float32]) -> PairTable:
        return PairTable(values, values.T)

    def factor(self, first: int, second: int, times: float) -> Factor:
        """The factor of the two sides' variables, of which either may be the lower."""
        if first < second:
            return Factor((first, second), self.forth, times)
        return Factor((second, first), self.back, times)


@dataclass(frozen=True, eq=False)
class _Best:
    """The best value of a variable for every choice of others, and the sum with it."""

    variable: int
    given: tuple[int, ...]
    choice: NDArray[np.int16]


def least(sizes: Sequence[int], factors: Sequence[Factor]) -> tuple[float, list[int]]:
    """The least sum over all variables, and a choice that has it. ``sizes``: values of each."""
    elimination = _Elimination(sizes, factors)
    elimination.run()
    return elimination.constant * UNIT, elimination.chosen()


class _Elimination:
    """Variables going one after the other, the one with the least table first.

    What is added for one variable is often added for another: blocks of a model are alike. Tables
    of equal content are one table here, and a sum of the same tables in the same arrangement is
    worked out once. Each table has 0 as its least entry; what that takes off goes to the constant.
    So what is left of all blocks before one comes to be the same table for every block. Seconds are
    whole numbers of picoseconds, which add up exactly in any order.
    """

    def __init__(self, sizes: Sequence[int], factors: Sequence[Factor]) -> None:
        self._sizes, self._factors = sizes, factors
        self._known: dict[object, Values] = {}
        self._sums: dict[object, tuple[NDArray[np.int16], Values, float]] = {}
        self._tables: dict[int, dict[tuple[int, ...], list[Values]]] = {
            v: defaultdict(list) for v, size in enumerate(sizes) if size > 1
        }
        self._order: list[_Best] = []
        self.constant = 0.0
        counted: dict[tuple[int, float], tuple[Values, float]] = {}
        for factor in factors:
            # Of what is settled no table has an axis: there may be any number of such variables.
            free = tuple(v for v in factor.variables if sizes[v] > 1)
            if factor.table not in counted:
                values = factor.scaled.reshape([sizes[v] for v in free])
                counted[factor.table] = self._one(np.rint(values / UNIT))
            self._add(free, *counted[factor.table])

    def run(self) -> None:
        for variable, scope in order(self._sizes, [f.variables for f in self._factors]):
            check_time()
            self._eliminate(variable, scope)

    def chosen(self) -> list[int]:
        """The best value of each variable, once all are gone."""
        values: dict[int, int] = {}
        for best in reversed(self._order):
            values[best.variable] = int(best.choice[tuple(values[v] for v in best.given)])
        return [values.get(v, 0) for v in range(len(self._sizes))]

    def _one(self, values: Values) -> tuple[Values, float]:
        """The array that stands for all of this content but for a constant, and the constant."""
        least = float(values.min(initial=np.inf))
        values = values - least if np.isfinite(least) else values
        content = blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).digest()
        return self._known.setdefault((values.shape, content), values), least

    def _add(self, variables: tuple[int, ...], values: Values, least: float) -> None:
        self.constant += least
        for v in variables:
            self._tables[v][variables].append(values)

    def _eliminate(self, variable: int, scope: tuple[int, ...]) -> None:
        """Take a variable out. ``scope``: all that its tables are about."""
        own = self._tables.pop(variable)
        rest = tuple(v for v in scope if v != variable)
        for variables in own:
            for v in variables:
                if v != variable:
                    del self._tables[v][variables]
        choice, left, least = self._summed(own, scope, scope.index(variable))
        self._order.append(_Best(variable, rest, choice))
        self._add(rest, left, least)

    def _summed(
        self, own: Mapping[tuple[int, ...], Sequence[Values]], scope: tuple[int, ...], axis: int
    ) -> tuple[NDArray[np.int16], Values, float]:
        """The best places along an axis of a sum of tables, and the sum there, as a table and a
        constant."""
        place = {v: i for i, v in enumerate(scope)}
        parts = [
            (tuple(place[v] for v in variables), values)
            for variables, tables in own.items()
            for values in tables
        ]
        shape = tuple(self._sizes[v] for v in scope)
        key = (shape, axis, tuple(sorted((places, id(values)) for places, values in parts)))
        best = self._sums.get(key)
        if best is None:
            total = np.zeros(shape)
            for places, values in parts:
                total += _spread(values, places, len(scope))
            choice = total.argmin(axis=axis)
            left = np.take_along_axis(total, np.expand_dims(choice, axis), axis).squeeze(axis)
            best = self._sums[key] = (choice.astype(np.int16), *self._one(left))
        return best


Scope = tuple[int, ...]


def order(sizes: Sequence[int], scopes: Iterable[Scope]) -> list[tuple[int, Scope]]:
    """The variables in the order in which they go, each with those that it shares a table with at
    that time. Variables of one value have no part in it."""
    near: dict[int, set[int]] = {v: {v} for v, size in enumerate(sizes) if size > 1}
    for scope in scopes:
        free = [v for v in scope if v in near]
        for v in free:
            near[v].update(free)
    entries = {v: _entries(sizes, near[v]) for v in near}
    waiting = [(count, v) for v, count in entries.items()]
    heapify(waiting)
    going: list[tuple[int, Scope]] = []
    while waiting:
        count, variable = heappop(waiting)
        if entries.get(variable) != count:
            continue  # its table has changed since, or it is gone
        del entries[variable]
        scope = near.pop(variable)
        going.append((variable, tuple(sorted(scope))))
        for v in scope - {variable}:
            near[v] = (near[v] | scope) - {variable}
            entries[v] = _entries(sizes, near[v])
            heappush(waiting, (entries[v], v))
    return going


def _entries(sizes: Sequence[int], scope: Iterable[int]) -> int:
    return prod(sizes[v] for v in scope)


def largest(sizes: Sequence[int], scopes: Iterable[Scope]) -> int:
    """The entries of the largest table on the way to the least sum."""
    return max((_entries(sizes, scope) for _, scope in order(sizes, scopes)), default=1)


def _spread(values: Values, places: Sequence[int], rank: int) -> Values:
    """A table with axes at these places among so many."""
    shape = [1] * rank
    for place, size in zip(places, values.shape, strict=True):
        shape[place] = size
    return values.reshape(shape)


Places = NDArray[np.intp]
"""Some of a variable's values, by place."""


def kept(sizes: Sequence[int], factors: Sequence[Factor], most: int) -> list[Places]:
    """For each variable, at most so many values: those with the least bound, which is what a value
    costs at best whatever its neighbours are."""
    bounds = [np.zeros(size) for size in sizes]
    least: dict[tuple[int, int], Values] = {}
    for factor in factors:
        for axis, v in enumerate(factor.variables):
            key = (id(factor.values), axis)
            if key not in least:
                others = tuple(i for i in range(len(factor.variables)) if i != axis)
                least[key] = factor.values.min(axis=others).astype(np.float64)
            bounds[v] += factor.times * least[key]
    return [np.sort(np.argsort(bound, kind="stable")[:most]) for bound in bounds]


def restricted(factors: Sequence[Factor], places: Sequence[Places]) -> list[Factor]:
    """The factors over some values of each variable. One table restricted alike is one table."""
    same = _interned(places)
    known: dict[tuple[object, ...], Values] = {}
    fewer: list[Factor] = []
    for factor in factors:
        some = [same[v] for v in factor.variables]
        if factor.values.shape == tuple(map(len, some)):
            fewer.append(factor)  # all of its values
            continue
        key = (factor.table, *map(id, some))
        if key not in known:
            part = factor.values[np.ix_(*some)]
            known[key] = part.astype(np.float64) * factor.times
        fewer.append(Factor(factor.variables, known[key]))
    return fewer


def _interned(places: Sequence[Places]) -> list[Places]:
    """Equal arrays as one object."""
    known: dict[bytes, Places] = {}
    return [known.setdefault(some.tobytes(), some) for some in places]
