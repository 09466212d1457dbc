"""Stages of TePDist: cuts where few bytes pass between operators, with balanced operations.

Problem: cut the sequence of a model's operators into stages, so that the least bytes pass between
them and no stage does more than ``1 + SLACK`` times its share of the operations.

Method: the paper (arXiv:2302.08141, on pipeline stages) states an integer program over the graph.
Over a sequence, as pipelines have here, dynamic programming is exact
(``search.planners.row_cuts``). Among cuts of equal bytes, one with more balanced operations is
taken. If one operator exceeds the limit, its stage may do as much. If there is no such cut, the
limit is raised.

Complexity: the stages times the square of the operators.
"""

from __future__ import annotations

import numpy as np

from pcg.graph.graph import Graph
from search.planners.row_cuts import balanced_parts, cut_row, operations, read_before, row_ends

SLACK = 0.2
"""The fraction by which a stage may exceed its share."""
TIES = 1e-6
"""The weight of the balance of stages, relative to the elements that are cut. It only breaks
ties."""


def stage_bounds(graph: Graph, count: int) -> tuple[int, ...]:
    """The places where stages begin and end among a graph's operators, both ends included."""
    total = len(graph.operators)
    ends, count = row_ends(total), min(count, total)
    read = read_before(graph)[np.ix_(ends[:-1], ends[1:] - 1)]
    for parts in balanced_parts(operations(graph), ends, count, SLACK):
        legal = parts < np.inf
        least, _ = cut_row(np.where(legal, read, np.inf), count, is_sum=True)
        if least < np.inf:
            even = np.where(legal, read + TIES * max(least, 1.0) * parts**2, np.inf)
            _, bounds = cut_row(even, count, is_sum=True)
            return tuple(int(ends[at]) for at in bounds)
    raise AssertionError("parts that do all there is are legal")
