"""Stages: consecutive layers on sub-meshes, for the least latency of a pipeline.

Problem: cut a sequence of layers into stages and give each a sub-mesh, so that the sum of all
stages plus ``B - 1`` times the slowest is least, for ``B`` micro-batches.

Method: Alpa's dynamic programming (Zheng et al., OSDI 2022, section 5.2, equations 2 to 4). The
slowest stage is bounded by t_max, which runs through the possible times of stages in ascending
order. For each, the least sum is found over the remaining layers and stages. Both prunings of the
paper are used: the loop stops when ``B t_max`` alone is no better than the best so far, and a t_max
less than ``APART`` above the last one is skipped. The number of stages after a stage determines how
many micro-batches it holds, and so whether it fits (equation 5). The times of stages depend on it.

Here all sub-meshes of a pipeline have one shape, like the pipelines of this runtime. So the
remaining devices follow from the remaining stages. The shapes are tried by the caller.

Complexity: the different times of stages, times the square of the layers, times the stages. Exact
up to ``APART``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

APART = 1e-6
"""The least distance in seconds between two bounds that are tried; the paper's epsilon."""

StageSecondsOf = Callable[[int, int, int], float]
"""A function to the seconds of one micro-batch through a stage, from its first layer, the layer
after its last, and the number of stages after it. Infinite if the stage does not fit."""


def best_stages(
    layers: int, stages: int, micro_batches: int, seconds_of: StageSecondsOf
) -> tuple[float, tuple[int, ...]] | None:
    """Return the least latency of a pipeline with ``stages`` stages, and the bounds of the stages
    among the layers, both ends included. None if none fits."""
    table = {
        (first, last, after): seconds
        for after in range(stages)
        for first in range(layers)
        for last in range(first + 1, layers + 1)
        if _may_be(first, last, after, layers, stages)
        and (seconds := seconds_of(first, last, after)) < inf
    }
    best: tuple[float, tuple[int, ...]] | None = None
    before = -inf
    for most in sorted(set(table.values())):
        if best is not None and micro_batches * most >= best[0]:
            break
        if most - before < APART:
            continue
        before = most
        best_within = _within(layers, stages, table, most + APART)
        if best_within is None:
            continue
        total, bounds = best_within
        slowest = max(
            table[bounds[i], bounds[i + 1], stages - 1 - i] for i in range(len(bounds) - 1)
        )
        latency = total + (micro_batches - 1) * slowest
        if best is None or latency < best[0]:
            best = latency, bounds
    return best


def _may_be(first: int, last: int, after: int, layers: int, stages: int) -> bool:
    """Whether all stages before and after can have layers, and no layer is left over."""
    before = stages - 1 - after
    if (before == 0 and first != 0) or (after == 0 and last != layers):
        return False
    return first >= before and layers - last >= after


def _within(
    layers: int, stages: int, table: dict[tuple[int, int, int], float], most: float
) -> tuple[float, tuple[int, ...]] | None:
    """The least sum of stages none of which takes more than ``most``, and their bounds."""
    ways: dict[int, tuple[float, tuple[int, ...]]] = {layers: (0.0, (layers,))}
    for after in range(stages):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for last, (total, bounds) in ways.items():
            for first in range(last):
                own = table.get((first, last, after), inf)
                if own <= most and total + own < longer.get(first, (inf,))[0]:
                    longer[first] = total + own, (first, *bounds)
        ways = longer
    return ways.get(0)
