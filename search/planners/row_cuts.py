"""Cuts of a sequence of operators where few bytes pass, for all planners of stages.

Problem: cut the sequence of a model's operators into parts that do about the same work, such that
the sum, or the maximum, of the given costs of parts is least. Method: dynamic programming over the
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
"""The number of operators up to which each may end a part. In a larger graph, several consecutive
ones are taken together."""
GROWTH = 1.25
"""The factor by which the limit of parts grows if no parts are within it."""
ROUNDING = 1e-9
"""The relative difference of sums in another order."""

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
    """The positions at which parts of ``total`` operators may end."""
    return np.unique(np.linspace(0, total, min(total, MOST_AT_ONCE) + 1).round().astype(int))


def readings(graph: Graph) -> Iterator[tuple[int, Sequence[int], float]]:
    """For each tensor between operators: the number of its maker, those of its readers (ascending),
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
    """[first, last]: elements that the operators from ``first`` to ``last`` read of earlier
    ones."""
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
    """[first, last]: the work of the parts between ``ends`` (the last one included), as a fraction
    of the limit; infinite above the limit. The limit is first ``1 + slack`` times an equal share,
    or the work of the largest operator; each further table has a larger one."""
    sums = np.concatenate([[0.0], np.cumsum(flops)])[ends]
    done = sums[None, 1:] - sums[:-1, None]
    share = max(sums[-1] / count * (1 + slack), float(np.diag(done).max()), 1.0)
    ascending = np.tri(len(ends) - 1, dtype=bool).T
    while True:
        legal = ascending & (done <= share * (1 + ROUNDING))
        yield np.where(legal, done / share, np.inf)
        share *= GROWTH


def cut_row(costs: RowVector, count: int, *, is_sum: bool) -> tuple[float, list[int]]:
    """The least sum, or the least maximum, of ``count`` consecutive parts, and their bounds.
    ``costs[i, j]``: of the part from i to j, j included; infinite if there is no such part."""
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
