"""Choices of strategies for stages. Stages of equal content are solved once, and with a limit of
memory only if the fastest choice does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pcg.memo import Memo
from search.map.choose.factors import Factor
from search.pipeline.stage_memory import PLAIN, Sparing
from search.planners.ilp import HeldBytes
from search.planners.row_prices import RowPrices, StageChoice

OPEN_GAP = 5e-3
"""The relative gap of a stage's seconds that may stay open. Prices are less precise than that."""


class StagePlaces(Protocol):
    """Chooses the strategies of the operators of a stage."""

    def __call__(
        self,
        prices: RowPrices,
        first: int,
        last: int,
        factors: Sequence[Factor],
        held: HeldBytes | None,
    ) -> Sequence[int] | None:
        """Return their places; None if none fits. The operators are those from ``first`` to before
        ``last``. Variables of ``factors`` count from ``first`` on."""
        ...


@dataclass
class StageChoices:
    """The strategies of stages by given prices. ``limit``: available bytes on a device."""

    prices: RowPrices
    limit: float
    places: StagePlaces
    """The function that chooses strategies."""
    _known: Memo[object, StageChoice | None] = field(
        init=False, default_factory=Memo[object, "StageChoice | None"]
    )

    def best(
        self, first: int, last: int, in_flight: int, sparing: Sparing = PLAIN
    ) -> StageChoice | None:
        """The choice for the operators from ``first`` to before ``last``; None if nothing fits."""
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
