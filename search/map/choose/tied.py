"""Variables that are alike take one value together: blocks of a model that repeat are planned once.

Problem: a deep model repeats its blocks, and the least sum over all of its operators takes time in
proportion to its depth, again for each of the many choices that a search makes.

Method: operators are of one colour that look alike so many operators far, before and after them
(``search.split.colours``). Those of one colour that may take the same values become one variable.
Its tables are the sums of theirs: of pairs of such variables, each counts as often as it stands in
the model; between two of one variable, its diagonal counts. The first and the last blocks look
unlike the others as far as one can see, and keep variables of their own.

The sum is that of the whole model, exactly, for all choices in which operators that look alike are
cut alike. That no other choice is cheaper is not shown: so only what is large is tied, and only
where that saves work (``saves``). Time is that of the different operators, and a step each for all
others. Operators that are far apart and become one variable close cycles, which make the tables of
an elimination larger: a graph of few that are alike is sooner eliminated as it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.map.choose.factors import Factor, Places, Scope, Values, order

LIKELY = 16
"""Values that each variable is taken to have, where the work of eliminations is compared."""


def saves(colours: Sequence[int], scopes: Sequence[Scope]) -> bool:
    """Whether there is less to add up where variables of one colour are one. ``scopes``: the
    variables of each table."""
    numbers: dict[int, int] = {}
    group = [numbers.setdefault(colour, len(numbers)) for colour in colours]
    tied = {tuple(sorted({group[v] for v in scope})) for scope in scopes}
    return _entries(len(numbers), tied) < _entries(len(group), set(scopes))


def _entries(variables: int, scopes: Collection[Scope]) -> int:
    """The entries of all tables of an elimination."""
    return sum(LIKELY ** len(scope) for _, scope in order([LIKELY] * variables, scopes))


@dataclass(frozen=True)
class Tied:
    """Variables by what they are tied to. ``group``: of each variable; ``members``: of each group,
    ascending."""

    group: Sequence[int]
    members: Sequence[Sequence[int]]

    @staticmethod
    def of(colour: Sequence[int], masks: Sequence[Places]) -> Tied:
        """Variables of one colour that may take the same values are one."""
        numbers: dict[Hashable, int] = {}
        members: dict[int, list[int]] = defaultdict(list)
        contents: dict[int, bytes] = {}
        group: list[int] = []
        for v, (own, mask) in enumerate(zip(colour, masks, strict=True)):
            content = contents.setdefault(id(mask), mask.tobytes())
            group.append(numbers.setdefault((own, content), len(numbers)))
            members[group[-1]].append(v)
        return Tied(group, [members[number] for number in range(len(numbers))])

    def picked(self, of_variables: Sequence[Places]) -> list[Places]:
        """What all of each group have, of its first."""
        return [of_variables[own[0]] for own in self.members]

    def sizes(self, sizes: Sequence[int]) -> list[int]:
        """The values of each group."""
        return [sizes[own[0]] for own in self.members]

    def row(self, values: Sequence[int]) -> list[int] | None:
        """A choice for all variables as one for the groups; None if a group's differ."""
        first = [values[own[0]] for own in self.members]
        alike = all(value == first[own] for value, own in zip(values, self.group, strict=True))
        return first if alike else None

    def spread(self, values: Sequence[int]) -> list[int]:
        """A choice for the groups as one for all variables."""
        return [values[own] for own in self.group]

    def factors(self, factors: Sequence[Factor]) -> list[Factor]:
        """The same sum, over the groups."""
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
