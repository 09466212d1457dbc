"""Cones: the operators of a stage in trees, each with one variable.

Problem: an integer program over every operator of a large graph is large. Most operators are cheap
and have a single reader.

Method: cones (Zhang et al., TePDist, arXiv:2302.08141, on SPMD strategies). The root of a cone is a
product, an operator with several readers or none, or one that another stage reads. Every other
operator belongs to the cone of its only reader. So a cone is a tree. For each strategy of the root,
dynamic programming finds the strategies of the others with the least time of the cone
(``ConeTable``). Reshardings from other cones do not count there, but between cones
(``Cones.factors``). By these, an integer program chooses the strategies of all roots together.

Complexity: linear in the tables. Exact within a cone, as tests show. Not exact for all cones
together, as the operators within a cone are chosen regardless of their operands from other cones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Node
from pcg.readings.kind import kind_of
from search.map.choose.factors import Factor
from search.map.choose.resharding import NEVER
from search.planners.ilp import HeldBytes, Vector

PlaceTable = NDArray[np.intp]


def cones(nodes: Sequence[Node]) -> tuple[int, ...]:
    """For each of some consecutive operators, the number of the root of its cone."""
    number = {node: i for i, node in enumerate(nodes)}
    readers: dict[int, set[int]] = defaultdict(set)
    for i, node in enumerate(nodes):
        for value in node.inputs:
            if value.node in number:
                readers[number[value.node]].add(i)
    root = list(range(len(nodes)))
    for i in reversed(range(len(nodes))):
        if len(readers[i]) == 1 and kind_of(nodes[i]) != "contraction":
            root[i] = root[min(readers[i])]
    return tuple(root)


@dataclass(frozen=True, eq=False)
class ConeTable:
    """A cone by the strategies of its root. ``seconds``: of the whole cone; ``places``: the place
    of each member's strategy."""

    root: int
    seconds: Vector
    places: Mapping[int, PlaceTable]


@dataclass(frozen=True, eq=False)
class Cones:
    """The cones of some operators, in the order of their roots. ``factors``: their costs, where
    variables are numbers of cones; ``of``: the cone of each operator."""

    tables: Sequence[ConeTable]
    factors: Sequence[Factor]
    of: Sequence[int]

    @staticmethod
    def made(roots: Sequence[int], sizes: Sequence[int], factors: Sequence[Factor]) -> Cones:
        """The cones for tables of one or two operators. ``roots``: see ``cones``; ``sizes``: the
        number of strategies of each operator."""
        alone = [np.zeros(size) for size in sizes]
        inside: dict[int, dict[int, Vector]] = defaultdict(dict)
        between: list[Factor] = []
        for factor in factors:
            first, *second = factor.variables
            if not second:
                alone[first] = alone[first] + factor.scaled
            elif roots[first] == roots[second[0]]:
                known = inside[second[0]].get(first)
                own = factor.scaled
                inside[second[0]][first] = own if known is None else known + own
            else:
                between.append(factor)
        number = {root: i for i, root in enumerate(sorted(set(roots)))}
        of = [number[root] for root in roots]
        tables = [_table(root, alone, inside) for root in number]
        reshaped = [_between(factor, of, tables) for factor in between]
        own = [Factor((i,), table.seconds) for i, table in enumerate(tables)]
        return Cones(tables, [*own, *reshaped], of)

    def held(self, held: HeldBytes) -> HeldBytes:
        """The bytes that the operators of each cone hold, by the strategies of its root."""
        sums = [
            np.sum([held.bytes[m][own] for m, own in table.places.items()], axis=0)
            for table in self.tables
        ]
        return HeldBytes(sums, held.limit)

    def spread(self, chosen: Sequence[int]) -> list[int]:
        """Strategies of the roots as strategies of all operators."""
        pairs = enumerate(self.of)
        return [int(self.tables[cone].places[m][chosen[cone]]) for m, cone in pairs]


def _table(
    root: int, alone: Sequence[Vector], inside: Mapping[int, Mapping[int, Vector]]
) -> ConeTable:
    """The least cost of a cone for each strategy of its root, from the leaves of the tree
    upwards."""
    picks: dict[tuple[int, int], PlaceTable] = {}

    def least(member: int) -> Vector:
        total = alone[member]
        for below, table in inside.get(member, {}).items():
            sums = least(below)[:, None] + table
            picks[below, member] = sums.argmin(axis=0)
            total = total + sums.min(axis=0)
        return total

    seconds = least(root)
    places: dict[int, PlaceTable] = {root: np.arange(len(seconds))}
    for (below, member), pick in reversed(picks.items()):
        places[below] = pick[places[member]]
    return ConeTable(root, seconds, places)


def _between(factor: Factor, of: Sequence[int], tables: Sequence[ConeTable]) -> Factor:
    """A table of two operators of different cones, by the strategies of their roots."""
    first, second = factor.variables
    a, b = of[first], of[second]
    own = factor.scaled[np.ix_(tables[a].places[first], tables[b].places[second])]
    return Factor((a, b), own) if a < b else Factor((b, a), own.T)


def possible(table: ConeTable) -> PlaceTable:
    """The strategies of a root with which its cone can run."""
    return np.flatnonzero(table.seconds < NEVER)
