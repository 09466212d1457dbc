"""Variables that are alike share one value: the blocks that a model repeats are planned once.

Problem: a deep model repeats its blocks. The least sum over all of its operators takes time in
proportion to its depth, again for each of the many choices that a search makes.

Method: operators have one colour if their surroundings look alike up to some distance, before and
after them (``search.split.colours``). Those of one colour that may take the same values become one
variable. The tables of the new variables are sums of the old ones. A table of two new variables
counts as often as it occurs in the model. A table between two operators that are the same variable
counts by its diagonal. The first and the last blocks have other surroundings, and keep variables of
their own.

The sum is exactly that of the whole model, for all choices that cut operators of one colour alike.
No proof excludes that another choice is cheaper. So only large graphs are tied, and only where this
saves work (``saves``). The time is that of eliminating the different operators, plus one step for
each other operator. Where operators far apart become one variable, they close cycles, and the
tables of an elimination grow. So a graph with few operators that are alike is eliminated faster as
it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.map.choose.factors import Factor, Places, Scope, Values, order

TYPICAL_VALUES = 16
"""The number of values that each variable is taken to have when the work of two eliminations is
compared."""


def saves(colours: Sequence[int], scopes: Sequence[Scope]) -> bool:
    """Whether an elimination has less to add up if the variables of one colour are one variable.
    ``scopes``: the variables of each table."""
    numbers: dict[int, int] = {}
    group = [numbers.setdefault(colour, len(numbers)) for colour in colours]
    tied = {tuple(sorted({group[v] for v in scope})) for scope in scopes}
    return _entries(len(numbers), tied) < _entries(len(group), set(scopes))


def _entries(variables: int, scopes: Collection[Scope]) -> int:
    """The number of entries of all tables of an elimination."""
    return sum(
        TYPICAL_VALUES ** len(scope) for _, scope in order([TYPICAL_VALUES] * variables, scopes)
    )


@dataclass(frozen=True)
class TiedVariables:
    """Groups of variables that take one value. ``group``: the group of each variable; ``members``:
    the variables of each group, ascending."""

    group: Sequence[int]
    members: Sequence[Sequence[int]]

    @staticmethod
    def of(colour: Sequence[int], masks: Sequence[Places]) -> TiedVariables:
        """Group the variables that have one colour and may take the same values."""
        numbers: dict[Hashable, int] = {}
        members: dict[int, list[int]] = defaultdict(list)
        contents: dict[int, bytes] = {}
        group: list[int] = []
        for v, (own_colour, mask) in enumerate(zip(colour, masks, strict=True)):
            content = contents.setdefault(id(mask), mask.tobytes())
            group.append(numbers.setdefault((own_colour, content), len(numbers)))
            members[group[-1]].append(v)
        return TiedVariables(group, [members[number] for number in range(len(numbers))])

    def picked(self, of_variables: Sequence[Places]) -> list[Places]:
        """For each group, the entry of its first variable, which is that of all its variables."""
        return [of_variables[group[0]] for group in self.members]

    def sizes(self, sizes: Sequence[int]) -> list[int]:
        """The number of values of each group."""
        return [sizes[group[0]] for group in self.members]

    def row(self, values: Sequence[int]) -> list[int] | None:
        """A choice for all variables as a choice for the groups; None if variables of a group
        differ."""
        first = self.firsts(values)
        alike = all(value == first[group] for value, group in zip(values, self.group, strict=True))
        return first if alike else None

    def firsts(self, values: Sequence[int]) -> list[int]:
        """The value of the first variable of each group."""
        return [values[group[0]] for group in self.members]

    def spread(self, values: Sequence[int]) -> list[int]:
        """A choice for the groups as a choice for all variables."""
        return [values[group] for group in self.group]

    def factors(self, factors: Sequence[Factor]) -> list[Factor]:
        """Factors with the same sum over the groups."""
        alone: dict[int, Counter[tuple[int, float]]] = defaultdict(Counter)
        pairs: Counter[tuple[int, int, bool, tuple[int, float]]] = Counter()
        tables: dict[tuple[int, float], Factor] = {}
        for factor in factors:
            tables.setdefault(factor.table, factor)
            first, *second = (self.group[v] for v in factor.variables)
            if second:
                turned = second[0] < first
                low, high = sorted((first, second[0]))
                pairs[low, high, turned, factor.table] += 1
            else:
                alone[first][factor.table] += 1
        summed: dict[int, Values] = {
            group: sum(
                (count * tables[table].scaled for table, count in counts.items()), np.zeros(())
            )
            for group, counts in alone.items()
        }
        made: list[Factor] = []
        turned_tables: dict[int, Values | NDArray[np.float32]] = {}
        for (low, high, turned, table), count in pairs.items():
            values, times = tables[table].values, tables[table].times * count
            if low == high:
                summed[low] = summed.get(low, 0.0) + times * np.diagonal(values).astype(np.float64)
                continue
            if turned:
                values = turned_tables.setdefault(table[0], values.T)
            made.append(Factor((low, high), values, times))
        return [*made, *(Factor((group,), values) for group, values in summed.items())]
