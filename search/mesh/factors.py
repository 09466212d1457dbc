"""The least sum of tables over finitely many choices, by variable elimination.

Eliminating a variable adds the tables that it is in and keeps, for every choice of the other
variables in these, its best value (Bertele and Brioschi, 1972). The next to go is the one whose
table is least; along chains and branches that join again, tables stay small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Factor:
    """A sum's part: one axis of ``values`` for each of ``variables``, which ascend."""

    variables: tuple[int, ...]
    values: Values


@dataclass(frozen=True, eq=False)
class _Best:
    variable: int
    given: tuple[int, ...]
    choice: NDArray[np.intp]


def least(sizes: Sequence[int], factors: Sequence[Factor]) -> tuple[float, list[int]]:
    """The least sum over all variables, and a choice that has it. ``sizes``: values of each."""
    tables: dict[int, dict[int, Factor]] = {v: {} for v in range(len(sizes))}
    constant = 0.0
    for factor in _merged(factors):
        for v in factor.variables:
            tables[v][id(factor)] = factor
    order: list[_Best] = []
    left = set(range(len(sizes)))
    while left:
        variable = min(left, key=lambda v: (_entries(v, tables, sizes), v))
        left.remove(variable)
        own = list(tables[variable].values())
        scope = tuple(sorted({v for factor in own for v in factor.variables} | {variable}))
        total = np.zeros(())
        for factor in own:
            total = total + _spread(factor, scope)
            for v in factor.variables:
                del tables[v][id(factor)]
        full = np.broadcast_to(total, [sizes[v] for v in scope])
        axis = scope.index(variable)
        rest = tuple(v for v in scope if v != variable)
        order.append(_Best(variable, rest, full.argmin(axis=axis)))
        made = Factor(rest, full.min(axis=axis))
        if not rest:
            constant += float(made.values)
            continue
        for v in rest:
            tables[v][id(made)] = made
    chosen: dict[int, int] = {}
    for best in reversed(order):
        chosen[best.variable] = int(best.choice[tuple(chosen[v] for v in best.given)])
    return constant, [chosen[v] for v in range(len(sizes))]


def _merged(factors: Sequence[Factor]) -> list[Factor]:
    """Factors over the same variables, added."""
    found: dict[tuple[int, ...], Values] = {}
    for factor in factors:
        known = found.get(factor.variables)
        found[factor.variables] = factor.values if known is None else known + factor.values
    return [Factor(variables, values) for variables, values in found.items()]


def _entries(v: int, tables: Mapping[int, Mapping[int, Factor]], sizes: Sequence[int]) -> int:
    return prod(sizes[u] for u in {u for f in tables[v].values() for u in f.variables} | {v})


def _spread(factor: Factor, scope: tuple[int, ...]) -> Values:
    """The factor with an axis for every variable of a scope."""
    shape = [1] * len(scope)
    for v, size in zip(factor.variables, factor.values.shape, strict=True):
        shape[scope.index(v)] = size
    return factor.values.reshape(shape)


def kept(sizes: Sequence[int], factors: Sequence[Factor], most: int) -> list[NDArray[np.intp]]:
    """For each variable, at most so many values: those with the least bound, which is what a value
    costs at best whatever its neighbours are."""
    bounds = [np.zeros(size) for size in sizes]
    for factor in _merged(factors):
        for axis, v in enumerate(factor.variables):
            others = tuple(i for i in range(len(factor.variables)) if i != axis)
            bounds[v] = bounds[v] + factor.values.min(axis=others)
    return [np.sort(np.argsort(bound, kind="stable")[:most]) for bound in bounds]


def restricted(factors: Sequence[Factor], values: Sequence[NDArray[np.intp]]) -> list[Factor]:
    """The factors over some values of each variable."""
    return [
        Factor(f.variables, f.values[np.ix_(*(values[v] for v in f.variables))]) for f in factors
    ]
