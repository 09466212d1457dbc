"""Stages of TePDist: where least passes between operators, and the operations are balanced.

Problem: cut the row of a model's operators into some stages, so that the bytes that pass between
them are the least and no stage does more than ``1 + SLACK`` times its share of the operations.

Method: the paper (arXiv:2302.08141, on pipeline stages) states an integer program over the graph;
over a row, as pipelines have here, dynamic programming is exact (``search.planners.row_cuts``).
Among cuts of equal bytes, one with operations that differ less is taken. Where one operator does
more than that, a stage may do as much; where there is no such cut, stages may do more.

Complexity: the stages times the square of the operators.
"""

from __future__ import annotations

import numpy as np

from pcg.graph.graph import Graph
from search.planners.row_cuts import balanced_parts, cut_row, operations, read_before, row_ends

SLACK = 0.2
"""By what part a stage may do more than its share."""
TIES = 1e-6
"""Of the elements that are cut: what a stage that does all that it may counts."""


def stage_bounds(graph: Graph, count: int) -> tuple[int, ...]:
    """Where stages begin and end in the order of a graph's operators, both ends included."""
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
