"""Strategies of the operators of a stage, as planners of stages ask for them: once for stages of
equal content, and with a limit of memory only where the fastest choice does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pcg.memo import Memo
from search.map.choose.factors import Factor
from search.pipeline.outline import PLAIN, Sparing
from search.planners.ilp import HeldBytes
from search.planners.row_prices import RowPrices, StageChoice

OPEN = 5e-3
"""Of a stage's seconds: what may be left open where memory is short. Prices are not as near."""


class StagePlaces(Protocol):
    """How a planner chooses the strategies of operators from one to before another."""

    def __call__(
        self,
        prices: RowPrices,
        first: int,
        last: int,
        factors: Sequence[Factor],
        held: HeldBytes | None,
    ) -> Sequence[int] | None:
        """Their places; None where none fits. Variables of ``factors`` count from ``first`` on."""
        ...


@dataclass
class StageChoices:
    """The strategies of stages by some prices. ``limit``: bytes that a device has."""

    prices: RowPrices
    limit: float
    places: StagePlaces
    """How strategies are chosen."""
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
        places = self.places(prices, first, last, factors, held)
        return None if places is None else prices.choice(first, last, places)
