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

import numpy as np

from pcg.graph.graph import Graph
from search.planners.row_cuts import (
    ROUNDING,
    RowVector,
    balanced_parts,
    cut_row,
    read_before,
    row_ends,
)

SLACK = 0.5
"""By what part a layer may do more than its share; the paper's delta."""


def layers(graph: Graph, flops: RowVector, count: int) -> tuple[int, ...]:
    """Where layers begin and end in the order of a graph's operators, both ends included: as many
    as asked for, or as there are operators."""
    total = len(graph.operators)
    ends, count = row_ends(total), min(count, total)
    read = read_before(graph)[np.ix_(ends[:-1], ends[1:] - 1)]
    for parts in balanced_parts(flops, ends, count, SLACK):
        legal = parts < np.inf
        most, _ = cut_row(np.where(legal, read, np.inf), count, is_sum=False)
        if most < np.inf:
            within = legal & (read <= most * (1 + ROUNDING))
            _, bounds = cut_row(np.where(within, parts**2, np.inf), count, is_sum=True)
            return tuple(int(ends[at]) for at in bounds)
    raise AssertionError("parts that do all there is are legal")
