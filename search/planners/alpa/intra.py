"""Strategies within a stage: Alpa's integer program on the prices of micro-batches.

Problem: for some operators in a row, on one sub-mesh, the strategies with which a micro-batch takes
least time and the stage fits.

Method: the devices of a sub-mesh are a logical mesh of two axes, each of which cuts one index of an
operator or copies it (Zheng et al., OSDI 2022, section 4.1); all shapes of it are tried. For each,
an integer program (section 4.2, ``search.planners.ilp``) chooses. What is done once a step, such as
the exchange of gradients, counts to each micro-batch in equal parts. Memory is asked for only where
the fastest choice does not fit. Stages of equal content are solved once.

Deviations: element-wise operators are not merged into others; in a stage of more than ``MOST_FREE``
operators, those that look alike are cut alike (``search.map.choose.tied``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from pcg.memo import Memo
from search.map.choose.factors import Factor, Places, restricted
from search.map.choose.tied import Tied
from search.map.space.strategies import Space
from search.pipeline.outline import PLAIN, Sparing
from search.planners.ilp import GAP, HeldBytes, Solved, Tally, solve
from search.planners.row_prices import RowPrices, StageChoice, logical_masks

MOST_FREE = 60
"""Operators of a stage that are chosen one by one."""
SOLVER_SECONDS = 20.0
"""For one integer program, where its relaxation is not enough."""
OPEN = 5e-3
"""Of the seconds of a stage: what may be left open where memory is short. Prices are not as near."""


@dataclass
class StageChoices:
    """The strategies of stages by some prices. ``limit``: bytes that a device has."""

    prices: RowPrices
    limit: float
    tally: Tally
    _known: Memo[object, StageChoice | None] = field(
        init=False, default_factory=Memo[object, "StageChoice | None"]
    )

    def best(
        self, first: int, last: int, in_flight: int, sparing: Sparing = PLAIN
    ) -> StageChoice | None:
        """Of the operators from one to before another; None where nothing fits."""
        content = self.prices.content(first, last)
        free = self._known.get(content, lambda: self._solved(first, last, None, PLAIN))
        if free is None or free.held(sparing, in_flight) <= self.limit:
            return free
        key = content, in_flight, sparing
        return self._known.get(key, lambda: self._solved(first, last, in_flight, sparing))

    def _solved(
        self, first: int, last: int, in_flight: int | None, sparing: Sparing
    ) -> StageChoice | None:
        prices, held = self.prices, None
        if in_flight is not None:
            held = HeldBytes(prices.held(first, last, in_flight, sparing), self.limit)
        factors = prices.factors(first, last, sparing)
        own = prices.spaces[first:last], prices.looks[first:last]
        places = best_places(*own, factors, held, self.tally, OPEN)
        return None if places is None else prices.choice(first, last, places)


def best_places(
    spaces: Sequence[Space],
    looks: Sequence[int],
    factors: Sequence[Factor],
    held: HeldBytes | None,
    tally: Tally,
    gap: float = GAP,
) -> list[int] | None:
    """The places of the strategies that together take least, up to a gap, on the best logical mesh;
    None where none fits. ``looks``: equal numbers for operators that look alike."""
    axes = spaces[0].strategies.shape[1]
    best: Solved | None = None
    places, least = None, inf
    for split in range(max(axes, 1)):
        masks = logical_masks(spaces, split)
        colours = looks if len(spaces) > MOST_FREE else range(len(spaces))
        tied = Tied.of(colours, masks)
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


def _tied_bytes(tied: Tied, held: HeldBytes, masks: Sequence[Places]) -> HeldBytes:
    """What the values of each group hold together."""
    sums = [np.sum([held.bytes[v][masks[own[0]]] for v in own], axis=0) for own in tied.members]
    return HeldBytes(sums, held.limit)
