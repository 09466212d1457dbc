"""Layers: operators in a row, clustered so that little passes between them and they work alike.

Problem: cut the row of a model's operators into some layers, of which stages are made.

Method: Alpa's dynamic programming (Zheng et al., OSDI 2022, section 5.2, "operator clustering").
The most that a layer reads of those before it is made as little as it can be, where no layer does
more than ``1 + SLACK`` times its share of the operations. Among the ways to do so, one is taken in
which the operations of layers differ least: that is a second pass, with the first one's answer as a
bound. Where one operator does more than that, its layer may do as much as it does; where operators
are so large that there is no such cut, layers may do more.

Complexity: the layers times the square of the operators. Exact.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Graph
from pcg.readings.work import gradient_nodes, work

SLACK = 0.5
"""By what part a layer may do more than its share; the paper's delta."""
GROWTH = 1.25
"""By what factor layers may do more where there are none."""
ROUNDING = 1e-9
"""Of sums in another order."""
MOST_AT_ONCE = 4000
"""Operators of a graph that are looked at one by one; in a larger one, some in a row are one."""

Vector = NDArray[np.float64]


def operations(graph: Graph) -> Vector:
    """Floating-point operations of each operator, forward and backward."""
    trained = gradient_nodes(graph)
    done: list[float] = []
    for node in graph.operators:
        needs = frozenset(i for i, value in enumerate(node.inputs) if value.node in trained)
        own = work(node, needs)
        done.append(own.flops_forward + own.flops_backward)
    return np.array(done)


def layers(graph: Graph, flops: Vector, count: int) -> tuple[int, ...]:
    """Where layers begin and end in the order of a graph's operators, both ends included: as many
    as asked for, or as there are operators."""
    total = len(graph.operators)
    ends = np.unique(np.linspace(0, total, min(total, MOST_AT_ONCE) + 1).round().astype(int))
    count = min(count, total)
    read = _read(graph)[np.ix_(ends[:-1], ends[1:] - 1)]
    sums = np.concatenate([[0.0], np.cumsum(flops)])[ends]
    work_of = sums[None, 1:] - sums[:-1, None]
    share = max(sums[-1] / count * (1 + SLACK), float(np.diag(work_of).max()))
    ascending = np.tri(len(ends) - 1, dtype=bool).T
    while True:
        legal = ascending & (work_of <= share * (1 + ROUNDING))
        most, _ = _cut(np.where(legal, read, np.inf), count, is_sum=False)
        if most < np.inf:
            break
        share *= GROWTH
    within = legal & (read <= most * (1 + ROUNDING))
    _, bounds = _cut(np.where(within, (work_of / max(share, 1.0)) ** 2, np.inf), count, is_sum=True)
    return tuple(int(ends[at]) for at in bounds)


def _read(graph: Graph) -> Vector:
    """[first, last]: elements that operators from one to another read of those before them."""
    number = {node: i for i, node in enumerate(graph.operators)}
    readers: dict[tuple[int, int], list[int]] = defaultdict(list)
    sizes: dict[tuple[int, int], float] = {}
    for i, node in enumerate(graph.operators):
        for value in node.inputs:
            if value.node in number:
                key = number[value.node], value.port
                readers[key].append(i)
                sizes[key] = float(np.prod(value.type.shape))
    first_read = np.zeros((len(number), len(number)))
    for key, reading in readers.items():
        before = key[0]
        for reader in sorted(set(reading)):
            first_read[before + 1 : reader + 1, reader] += sizes[key]
            before = reader
    return np.cumsum(first_read, axis=1)


def _cut(costs: Vector, count: int, *, is_sum: bool) -> tuple[float, list[int]]:
    """The least sum, or the least maximum, of so many layers in a row, and their bounds.
    ``costs[i, j]``: of a layer from i to j, the latter included; infinite where there is none."""
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
