"""The least sum of tables over finitely many choices, by variable elimination.

Problem: each variable has finitely many values. Each table depends on a few variables. Find the
values with the least sum of all tables.

Method: to eliminate a variable, add up its tables, and keep the best value of the variable for
every choice of the other variables in these tables (Bertele and Brioschi, Nonserial Dynamic
Programming, 1972). The variable with the smallest table is eliminated next. Along chains, and along
branches that join again, tables stay small. Time and memory are those of the largest table, which
is exponential in the number of its variables.

The least sum is exact, up to a picosecond for each table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np
from numpy.typing import NDArray

from search.cost.progress import check_time

Values = NDArray[np.float64]
UNIT = 1e-12
"""The unit of sums, in seconds."""


@dataclass(frozen=True, eq=False)
class Factor:
    """A term of a sum. ``values`` has one axis for each of ``variables``, which ascend, and counts
    ``times``. The factors of equal blocks share one array, so that results derived from it are
    computed once."""

    variables: tuple[int, ...]
    values: Values | NDArray[np.float32]
    times: float = 1.0
    pair: PairTable | None = None
    """The table over pairs that ``values`` is, if it is one as a whole."""

    def least(self, axis: int) -> Values:
        """The least entry for each value of the variable of an axis, as a new array."""
        if self.pair is not None:
            is_forth = self.values is self.pair.forth
            return self.pair.least[axis if is_forth else 1 - axis].astype(np.float64)
        others = tuple(i for i in range(len(self.variables)) if i != axis)
        return self.values.min(axis=others).astype(np.float64)

    @property
    def table(self) -> tuple[int, float]:
        """A key that is equal for factors with the same array and ``times``. It is valid as long as
        the factors live."""
        return id(self.values), self.times

    @property
    def scaled(self) -> Values:
        """The values, multiplied by ``times``."""
        return self.values.astype(np.float64) * self.times


@dataclass(frozen=True, eq=False)
class PairTable:
    """A table over all pairs of choices of two sides, such as the maker and the reader of a tensor.
    It is held in both orders, since the variables of a factor ascend."""

    forth: NDArray[np.float32]
    back: NDArray[np.float32]

    @staticmethod
    def of(values: NDArray[np.float32]) -> PairTable:
        return PairTable(values, values.T)

    @cached_property
    def least(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The least entry for each choice of the first side, and of the second."""
        return self.forth.min(axis=1), self.forth.min(axis=0)

    def factor(self, first: int, second: int, times: float) -> Factor:
        """The factor for the variables of the two sides, in either order."""
        if first < second:
            return Factor((first, second), self.forth, times, self)
        return Factor((second, first), self.back, times, self)


@dataclass(frozen=True, eq=False)
class _BestValue:
    """The best value of an eliminated variable, for every choice of the variables in ``given``."""

    variable: int
    given: tuple[int, ...]
    choice: NDArray[np.int16]


def least(sizes: Sequence[int], factors: Sequence[Factor]) -> tuple[float, list[int]]:
    """Return the least sum over all variables, and a choice with that sum. ``sizes``: the number of
    values of each variable."""
    elimination = _Elimination(sizes, factors)
    elimination.run()
    return elimination.constant * UNIT, elimination.chosen()


class _Elimination:
    """The elimination of variables one after the other, the one with the smallest table first.

    Blocks of a model are alike, so the same sums come up for many variables. Tables of equal
    content are one object here, and a sum of the same tables in the same arrangement is computed
    once. The least entry of each table is 0: the difference goes to ``constant``. So the table that
    is left of all blocks before a given one comes to be the same for every block. Seconds are whole
    numbers of picoseconds, so that sums are exact in any order.
    """

    def __init__(self, sizes: Sequence[int], factors: Sequence[Factor]) -> None:
        self._sizes, self._factors = sizes, factors
        self._known: dict[object, Values] = {}
        self._sums: dict[object, tuple[NDArray[np.int16], Values, float]] = {}
        self._tables: dict[int, dict[tuple[int, ...], list[Values]]] = {
            v: defaultdict(list) for v, size in enumerate(sizes) if size > 1
        }
        self._order: list[_BestValue] = []
        self.constant = 0.0
        counted: dict[tuple[int, float], tuple[Values, float]] = {}
        for factor in factors:
            # A variable with one value gets no axis. So there may be any number of such variables.
            free = tuple(v for v in factor.variables if sizes[v] > 1)
            if factor.table not in counted:
                values = factor.scaled.reshape([sizes[v] for v in free])
                counted[factor.table] = self._normalized(np.rint(values / UNIT))
            self._add(free, *counted[factor.table])

    def run(self) -> None:
        for variable, scope in order(self._sizes, [f.variables for f in self._factors]):
            check_time()
            self._eliminate(variable, scope)

    def chosen(self) -> list[int]:
        """The best value of each variable, once all are eliminated."""
        values: dict[int, int] = {}
        for best in reversed(self._order):
            values[best.variable] = int(best.choice[tuple(values[v] for v in best.given)])
        return [values.get(v, 0) for v in range(len(self._sizes))]

    def _normalized(self, values: Values) -> tuple[Values, float]:
        """The shared array of this content after subtraction of its least entry, and that entry."""
        least = float(values.min(initial=np.inf))
        values = values - least if np.isfinite(least) else values
        content = blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).digest()
        return self._known.setdefault((values.shape, content), values), least

    def _add(self, variables: tuple[int, ...], values: Values, least: float) -> None:
        self.constant += least
        for v in variables:
            self._tables[v][variables].append(values)

    def _eliminate(self, variable: int, scope: tuple[int, ...]) -> None:
        """Eliminate a variable. ``scope``: all variables in its tables, itself included."""
        own = self._tables.pop(variable)
        rest = tuple(v for v in scope if v != variable)
        for variables in own:
            for v in variables:
                if v != variable:
                    del self._tables[v][variables]
        choice, left, least = self._summed(own, scope, scope.index(variable))
        self._order.append(_BestValue(variable, rest, choice))
        self._add(rest, left, least)

    def _summed(
        self, own: Mapping[tuple[int, ...], Sequence[Values]], scope: tuple[int, ...], axis: int
    ) -> tuple[NDArray[np.int16], Values, float]:
        """The best place along an axis of a sum of tables, for each choice of the other variables,
        and the sum there, as a table and a constant."""
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
            best = self._sums[key] = (choice.astype(np.int16), *self._normalized(left))
        return best


Scope = tuple[int, ...]


def order(sizes: Sequence[int], scopes: Iterable[Scope]) -> list[tuple[int, Scope]]:
    """The variables in the order of elimination, each with all variables in its tables at that
    time. Variables of one value are left out."""
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
            continue  # its table has changed since, or it is eliminated
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
    """The number of entries of the largest table of the elimination."""
    return max((_entries(sizes, scope) for _, scope in order(sizes, scopes)), default=1)


def _spread(values: Values, places: Sequence[int], rank: int) -> Values:
    """Give a table ``rank`` axes, with its own axes at the given places."""
    shape = [1] * rank
    for place, size in zip(places, values.shape, strict=True):
        shape[place] = size
    return values.reshape(shape)


FEW_PICKED = 32
"""Values are picked one by one if they are fewer than a table's entries by this factor."""

Places = NDArray[np.intp]
"""Places of some values of a variable."""


def with_least_bounds(
    sizes: Sequence[int], factors: Sequence[Factor], most: Sequence[int]
) -> list[Places]:
    """The places of the values with the least lower bounds: for each variable at most the number of
    values that ``most`` gives for it. The bound of a value adds up the least entries of the tables,
    over all values of its neighbours."""
    bounds = [np.zeros(size) for size in sizes]
    least: dict[tuple[int, int], Values] = {}
    for factor in factors:
        for axis, v in enumerate(factor.variables):
            key = (id(factor.values), axis)
            if key not in least:
                least[key] = factor.least(axis)
            bounds[v] += factor.times * least[key]
    return [
        np.arange(len(bound))
        if len(bound) <= few
        else np.sort(np.argsort(bound, kind="stable")[:few])
        for bound, few in zip(bounds, most, strict=True)
    ]


def restricted(factors: Sequence[Factor], places: Sequence[Places]) -> list[Factor]:
    """The factors over some values of each variable. Equal restrictions of a table share an
    array."""
    same = _interned(places)
    known: dict[tuple[int, ...], Values | NDArray[np.float32]] = {}
    fewer: list[Factor] = []
    for factor in factors:
        some = [same[v] for v in factor.variables]
        if factor.values.shape == tuple(map(len, some)):
            fewer.append(factor)  # all of its values
            continue
        key = (id(factor.values), *map(id, some))
        if key not in known:
            known[key] = _picked(factor.values, some)
        fewer.append(Factor(factor.variables, known[key], factor.times))
    return fewer


def _picked(
    values: Values | NDArray[np.float32], places: Sequence[Places]
) -> Values | NDArray[np.float32]:
    """The values at the given places along each axis. If these are many, whole rows are picked
    first: that copies memory in order, which is faster than picking single values."""
    if len(places) < 2 or FEW_PICKED * prod(map(len, places)) < values.size:
        return values[np.ix_(*places)]
    if not values.flags.c_contiguous:  # as if a reader and a maker changed places
        return _picked_rows(values.T, places[::-1]).T
    return _picked_rows(values, places)


def _picked_rows(
    values: Values | NDArray[np.float32], places: Sequence[Places]
) -> Values | NDArray[np.float32]:
    """The values at the given places along each axis, one axis after the other."""
    for axis, own in enumerate(places):
        if len(own) < values.shape[axis]:
            values = values.take(own, axis=axis)
    return values


def _interned(places: Sequence[Places]) -> list[Places]:
    """The arrays, with equal ones as one object."""
    known: dict[bytes, Places] = {}
    return [known.setdefault(array.tobytes(), array) for array in places]
