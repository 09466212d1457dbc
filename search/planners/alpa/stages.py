"""Stages: layers in a row on sub-meshes, for the least latency of a pipeline.

Problem: cut a row of layers into stages and give each a sub-mesh, so that the sum of all stages and
``B - 1`` times the slowest one is the least.

Method: Alpa's dynamic programming (Zheng et al., OSDI 2022, section 5.2, equations 2 to 4). The
slowest stage is bounded by t_max, which runs through what stages take, ascending. For each, the
least sum is found over what is left of the layers and of the stages. The paper's two prunings: it
stops where ``B t_max`` alone is no better than the best so far, and leaves out a t_max that is less
than ``APART`` above the last one. How many stages come after one says how many micro-batches it
holds, and so what fits (equation 5); that is asked for with each stage.

All sub-meshes of a pipeline are of one shape here, as pipelines of this runtime are: so the devices
that are left follow from the stages that are left. Shapes are gone through outside.

Complexity: the different times of stages, times the square of the layers and the stages. Exact but
for ``APART``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

APART = 1e-6
"""Seconds between two bounds that are tried; the paper's epsilon."""

StageSecondsOf = Callable[[int, int, int], float]
"""Seconds of one micro-batch through a stage: its first layer, the one after its last, and how many
stages come after it. Infinite where it does not fit."""


def best_stages(
    layers: int, stages: int, micro_batches: int, seconds_of: StageSecondsOf
) -> tuple[float, tuple[int, ...]] | None:
    """The least latency of a pipeline of so many stages, and where they begin and end among the
    layers, both ends included. None where there is none that fits."""
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
    """Whether each of the stages before and after would have a layer, and no layer is left."""
    before = stages - 1 - after
    if (before == 0 and first != 0) or (after == 0 and last != layers):
        return False
    return first >= before and layers - last >= after


def _within(
    layers: int, stages: int, table: dict[tuple[int, int, int], float], most: float
) -> tuple[float, tuple[int, ...]] | None:
    """The least sum of stages of which none takes more than ``most``, and their bounds."""
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
