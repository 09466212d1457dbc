"""Layers: consecutive operators, clustered such that few bytes pass between layers of similar work.

Problem: cut the sequence of a model's operators into layers, from which stages are formed.

Method: Alpa's dynamic programming (Zheng et al., OSDI 2022, section 5.2, "operator clustering").
The largest number of bytes that a layer reads of earlier ones is minimized, where no layer does
more than ``1 + SLACK`` times its share of the operations. A second pass, with this result as a
bound, selects the cut in which the operations of layers differ least. If one operator exceeds the
limit, its layer may do as much as the operator does. If operators are so large that there is no
such cut, the limit is raised.

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
"""The fraction by which a layer may exceed its share; the paper's delta."""


def layers(graph: Graph, flops: RowVector, count: int) -> tuple[int, ...]:
    """The places where layers begin and end among a graph's operators, both ends included. There
    are ``count`` layers, or as many as operators if these are fewer."""
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
