"""Bounds on the values of each variable, for sums too large to be minimized exactly.

Problem: where branches meet again and again, the tables of an elimination grow too large. Some
values of variables have to be left out first. The cost of a value beside its neighbours' best
values says little about its cost in the whole sum.

Method: sequential tree-reweighted message passing (Kolmogorov, PAMI 2006, figure 3). It moves costs
between tables without changing any sum. In the end, the cost that is left at a value of a variable
is about the least cost of the whole with that value. A pass takes time in proportion to the entries
of all tables. The choice of values that are kept is a heuristic; the least sum over these is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.cost.progress import check_time
from search.map.choose.factors import Factor, Places, Values, largest, restricted, with_least_bounds

MOST = 16
"""The values of a variable that are considered, if tables of all values are too large."""
FEW_PASSING = 256
"""The least number of values of each variable for which messages are passed."""
PASSING = 1 / 4
"""The fraction of the values of a variable for which messages are passed, if it is more."""
FEW_ENTRIES = 1 << 14
"""The entries up to which a table counts as small, so that no value is left out."""
MOST_ENTRIES = 1 << 20
"""The most entries of a table. Where branches meet, larger tables could come up."""
FEWER_PASSING = 128
"""The values of each variable that are left for a second pass, which changes costs little. More
passes change less."""
NEVER = 1e7
"""A number of seconds that stands for infinity, so that differences are defined."""


def considered_values(
    sizes: Sequence[int],
    factors: Sequence[Factor],
    most: int = MOST,
    also: Sequence[Sequence[int]] = (),
) -> list[Places]:
    """The values of each variable that an elimination considers: all, or the most promising ones
    and those of known choices (``also``), so that the result is no worse than these."""
    scopes = [factor.variables for factor in factors]
    if largest(sizes, scopes) <= FEW_ENTRIES:
        return [np.arange(size) for size in sizes]
    while most > 2 and largest([min(size, most) for size in sizes], scopes) > MOST_ENTRIES:
        most //= 2
    if max(sizes, default=0) <= most:  # all are kept, whatever their bounds
        return [np.arange(size) for size in sizes]
    return promising(sizes, factors, most, also)


def promising(
    sizes: Sequence[int],
    factors: Sequence[Factor],
    most: int,
    also: Sequence[Sequence[int]] = (),
) -> list[Places]:
    """For each variable, at most ``most`` values with the least cost of the whole, and beside them
    the values of a choice that costs little and of known choices (``also``). Tables have one or two
    variables."""
    passed = [max(FEW_PASSING, int(PASSING * size)) for size in sizes]
    places = _with(with_least_bounds(sizes, factors, passed), also, sizes)
    passing = _MessagePassing.of([len(kept) for kept in places], restricted(factors, places))
    passing.there_and_back()
    fewer = passing.least(max(FEWER_PASSING, most))
    again = passing.among(fewer)
    again.there_and_back()
    best = _of(_of(places, fewer), again.least(most))
    return _with(best, also, sizes)


def _of(places: Sequence[Places], some: Sequence[Places]) -> list[Places]:
    """For each variable, the places among the given ones."""
    return [kept[few] for kept, few in zip(places, some, strict=True)]


def _with(
    places: Sequence[Places], choices: Sequence[Sequence[int]], sizes: Sequence[int]
) -> list[Places]:
    """The given places, and those of the values of some choices."""
    return [
        _union(size, kept, [choice[v] for choice in choices])
        for v, (kept, size) in enumerate(zip(places, sizes, strict=True))
    ]


def _union(size: int, places: Places, more: Sequence[int]) -> Places:
    """Places below ``size`` and some more, in order."""
    mask = np.zeros(size, bool)
    mask[places] = True
    mask[more] = True
    return np.flatnonzero(mask)


@dataclass(eq=False)
class _Edge:
    """A table of two variables, with the messages to the first (``down``) and the second
    (``up``)."""

    first: int
    second: int
    table: NDArray[np.float32]
    """[first, second]"""
    down: NDArray[np.float32]
    up: NDArray[np.float32]

    def among(self, places: Sequence[Places]) -> _Edge:
        """The edge between some values of its variables."""
        a, b = places[self.first], places[self.second]
        table = self.table.take(a, axis=0).take(b, axis=1)
        return _Edge(self.first, self.second, table, self.down[a], self.up[b])


class _MessagePassing:
    """Messages between variables, in the order of their numbers and back. Messages have single
    precision, since memory traffic takes most of the time."""

    def __init__(self, own: Sequence[Values], edges: Sequence[_Edge]) -> None:
        """``own``: the cost of each value of each variable by itself."""
        self._own, self._edges = own, edges
        self._before: list[list[_Edge]] = [[] for _ in own]
        self._after: list[list[_Edge]] = [[] for _ in own]
        for edge in edges:
            self._after[edge.first].append(edge)
            self._before[edge.second].append(edge)

    @staticmethod
    def of(sizes: Sequence[int], factors: Sequence[Factor]) -> _MessagePassing:
        """The start, without messages."""
        own = [np.zeros(size) for size in sizes]
        pairs: dict[tuple[int, int], list[Factor]] = defaultdict(list)
        for factor in factors:
            first, *second = factor.variables
            if second:
                pairs[first, second[0]].append(factor)
            else:
                own[first] += np.minimum(factor.scaled, NEVER)
        sums: dict[tuple[tuple[int, float], ...], NDArray[np.float32]] = {}
        edges: list[_Edge] = []
        for (a, b), parts in pairs.items():
            # The sum that equal blocks share is computed once.
            key = tuple(factor.table for factor in parts)
            if key not in sums:
                total = np.zeros((sizes[a], sizes[b]), np.float32)
                for factor in parts:
                    total += factor.values * np.float32(factor.times)
                sums[key] = np.minimum(total, NEVER, out=total)
            down, up = np.zeros(sizes[a], np.float32), np.zeros(sizes[b], np.float32)
            edges.append(_Edge(a, b, sums[key], down, up))
        return _MessagePassing(own, edges)

    def among(self, places: Sequence[Places]) -> _MessagePassing:
        """The messages between some values of each variable."""
        own = [costs[some] for costs, some in zip(self._own, places, strict=True)]
        return _MessagePassing(own, [edge.among(places) for edge in self._edges])

    def there_and_back(self) -> None:
        for v in range(len(self._own)):
            check_time()
            self._forward(v)
        for v in reversed(range(len(self._own))):
            check_time()
            self._backward(v)

    def least(self, most: int) -> list[Places]:
        """The places of the ``most`` values of each variable with the least cost of the whole, and
        of the values of a choice that costs little."""
        return [
            _union(len(own), np.argsort(self.cost(v), kind="stable")[:most], [value])
            for v, (own, value) in enumerate(zip(self._own, self._rounded(), strict=True))
        ]

    def cost(self, v: int) -> Values:
        """The approximate least cost of the whole with each value of a variable."""
        total = self._own[v].copy()
        for edge in self._before[v]:
            total += edge.up
        for edge in self._after[v]:
            total += edge.down
        return total

    def _part(self, v: int) -> NDArray[np.float32]:
        """The cost that a variable passes on over each of its edges."""
        most = max(len(self._before[v]), len(self._after[v]), 1)
        return (self.cost(v) / most).astype(np.float32)

    def _forward(self, v: int) -> None:
        if self._after[v]:
            part = self._part(v)
            for edge in self._after[v]:
                edge.up = _lowered((edge.table + (part - edge.down)[:, None]).min(axis=0))

    def _backward(self, v: int) -> None:
        if self._before[v]:
            part = self._part(v)
            for edge in self._before[v]:
                edge.down = _lowered((edge.table + (part - edge.up)[None, :]).min(axis=1))

    def _rounded(self) -> list[int]:
        """A choice of values, one variable after the other, each given those before."""
        chosen: list[int] = []
        for v, own in enumerate(self._own):
            total = own.copy()
            for edge in self._before[v]:
                total += edge.table[chosen[edge.first]]
            for edge in self._after[v]:
                total += edge.down
            chosen.append(int(total.argmin()))
        return chosen


def _lowered(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values - values.min()
