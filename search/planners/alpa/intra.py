"""Strategies within a stage: Alpa's integer program on the prices of micro-batches.

Problem: for consecutive operators on a sub-mesh, find the strategies with the least time of a
micro-batch with which the stage fits in memory.

Method: the devices of a sub-mesh form a logical mesh of two axes, each of which cuts one index of
an operator or copies (Zheng et al., OSDI 2022, section 4.1). All its shapes are tried. For each, an
integer program chooses (section 4.2, ``search.planners.ilp``). Work once a step, such as the
exchange of gradients, counts to each micro-batch in equal parts.

Deviations: element-wise operators are not merged into others. In a stage of more than ``MOST_FREE``
operators, those that look alike are cut alike (``search.map.choose.tied``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from search.map.choose.factors import Factor, Places, restricted
from search.map.choose.tied import TiedVariables
from search.map.space.strategies import Space
from search.planners.ilp import GAP, HeldBytes, Solution, Tally, solve
from search.planners.row_prices import logical_masks

MOST_FREE = 60
"""The most operators of a stage that are chosen independently."""
SOLVER_SECONDS = 20.0
"""The time limit of one integer program, if its relaxation is not enough."""


def best_places(
    spaces: Sequence[Space],
    colours: Sequence[int],
    factors: Sequence[Factor],
    held: HeldBytes | None,
    tally: Tally,
    gap: float = GAP,
) -> list[int] | None:
    """Return the places of the strategies with the least sum, up to a gap, on the best logical
    mesh. None if none fits. ``colours``: equal for operators that look alike."""
    axes = spaces[0].strategies.shape[1]
    best: Solution | None = None
    places, least = None, inf
    for split in range(max(axes, 1)):
        masks = logical_masks(spaces, split)
        own = colours if len(spaces) > MOST_FREE else range(len(spaces))
        tied = TiedVariables.of(own, masks)
        within = restricted(factors, masks)
        bytes_held = None if held is None else _tied_bytes(tied, held, masks)
        sizes = [len(mask) for mask in tied.picked(masks)]
        solution = solve(sizes, tied.factors(within), bytes_held, least, SOLVER_SECONDS, gap)
        if solution is not None:
            best, least = solution, solution.seconds
            chosen = tied.spread(solution.places)
            places = [int(mask[at]) for mask, at in zip(masks, chosen, strict=True)]
    if best is not None:
        tally.add(best)
    return places


def _tied_bytes(tied: TiedVariables, held: HeldBytes, masks: Sequence[Places]) -> HeldBytes:
    """The bytes that the values of each group hold together."""
    sums = [np.sum([held.bytes[v][masks[own[0]]] for v in own], axis=0) for own in tied.members]
    return HeldBytes(sums, held.limit)
