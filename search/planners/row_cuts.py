"""A row of operators, cut where little passes: what planners of stages share.

Problem: cut the row of a model's operators into parts, such that parts do about the same and the
sum, or the largest, of what is given for each is the least. Method: dynamic programming over the
ends of parts. Complexity: the parts times the square of the operators. Exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Graph
from pcg.readings.work import gradient_nodes, work

MOST_AT_ONCE = 4000
"""Operators of a graph that are looked at one by one; in a larger one, some in a row are one."""
GROWTH = 1.25
"""By what factor parts may do more where there are none."""
ROUNDING = 1e-9
"""Of sums in another order."""

RowVector = NDArray[np.float64]


def operations(graph: Graph) -> RowVector:
    """Floating-point operations of each operator, forward and backward."""
    trained = gradient_nodes(graph)
    done: list[float] = []
    for node in graph.operators:
        needs = frozenset(i for i, value in enumerate(node.inputs) if value.node in trained)
        own = work(node, needs)
        done.append(own.flops_forward + own.flops_backward)
    return np.array(done)


def row_ends(total: int) -> NDArray[np.intp]:
    """Where parts of so many operators may end."""
    return np.unique(np.linspace(0, total, min(total, MOST_AT_ONCE) + 1).round().astype(int))


def readings(graph: Graph) -> Iterator[tuple[int, Sequence[int], float]]:
    """Of each tensor between operators: the number of its maker, those of its readers (ascending),
    and its elements."""
    number = {node: i for i, node in enumerate(graph.operators)}
    readers: dict[tuple[int, int], set[int]] = defaultdict(set)
    sizes: dict[tuple[int, int], float] = {}
    for i, node in enumerate(graph.operators):
        for value in node.inputs:
            if value.node in number:
                key = number[value.node], value.port
                readers[key].add(i)
                sizes[key] = float(np.prod(value.type.shape))
    for key, reading in readers.items():
        yield key[0], sorted(reading), sizes[key]


def read_before(graph: Graph) -> RowVector:
    """[first, last]: elements that operators from one to another read of those before them."""
    count = len(graph.operators)
    first_read = np.zeros((count, count))
    for before, reading, size in readings(graph):
        for reader in reading:
            first_read[before + 1 : reader + 1, reader] += size
            before = reader
    return np.cumsum(first_read, axis=1)


def balanced_parts(
    flops: RowVector, ends: NDArray[np.intp], count: int, slack: float
) -> Iterator[RowVector]:
    """[first, last]: of parts between ``ends`` (the last one included), by what part of what may be
    done at most they do, infinite where they do more. At first that is ``1 + slack`` times their
    share, or as much as one does alone; then always more, as often as asked."""
    sums = np.concatenate([[0.0], np.cumsum(flops)])[ends]
    done = sums[None, 1:] - sums[:-1, None]
    share = max(sums[-1] / count * (1 + slack), float(np.diag(done).max()), 1.0)
    ascending = np.tri(len(ends) - 1, dtype=bool).T
    while True:
        legal = ascending & (done <= share * (1 + ROUNDING))
        yield np.where(legal, done / share, np.inf)
        share *= GROWTH


def cut_row(costs: RowVector, count: int, *, is_sum: bool) -> tuple[float, list[int]]:
    """The least sum, or the least maximum, of so many parts in a row, and their bounds.
    ``costs[i, j]``: of a part from i to j, the latter included; infinite where there is none."""
    join = np.add if is_sum else np.maximum
    total = len(costs)
    best = np.concatenate([[0.0], np.full(total, np.inf)])
    chosen: list[NDArray[np.intp]] = []
    for _ in range(count):
        table = join(best[:-1, None], costs)
        chosen.append(table.argmin(axis=0))
        best = np.concatenate([[np.inf], table.min(axis=0)])
    bounds = [total]
    for begins in reversed(chosen):
        bounds.append(int(begins[bounds[-1] - 1]))
    return float(best[-1]), bounds[::-1]
