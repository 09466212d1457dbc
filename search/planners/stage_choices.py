"""Choices of strategies for stages, each by an integer program. Stages of equal content are solved
once, and with a limit of memory only if the fastest choice does not fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from pcg.memo import Memo
from search.choices import Recompute
from search.cost.progress import check_time
from search.map.choose.factors import Factor
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import Outline
from search.pipeline.stage_memory import PLAIN, Sparing
from search.pipeline.tries import PLAIN_FIRST, SPARING
from search.planners.common import PlannerSetting
from search.planners.ilp import HeldBytes, Tally
from search.planners.row_prices import RowPrices, StageChoice

OPEN_GAP = 5e-3
"""The relative gap of a stage's seconds that may stay open. Prices are less precise than that."""
ROOM = 0.85
"""The fraction of a device's memory for weights and saved tensors. The rest is for tensors of the
fullest time alone, which do not add up over operators."""


class StageProblem(NamedTuple):
    """The choice of strategies for the operators from ``first`` to before ``last``. Variables of
    ``factors`` count from ``first`` on. ``held``: the bytes that must fit, if they matter."""

    prices: RowPrices
    first: int
    last: int
    factors: Sequence[Factor]
    held: HeldBytes | None


StagePlaces = Callable[[StageProblem], Sequence[int] | None]
"""A function from a stage to the places of its operators' strategies; None if none fits."""


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
        places = self.places(StageProblem(prices, first, last, factors, held))
        return None if places is None else prices.choice(first, last, places)


@dataclass(frozen=True)
class SolvedLevels(ABC):
    """The levels of a planner that solves stages one by one."""

    setting: PlannerSetting
    tally: Tally

    @abstractmethod
    def places(self, stage: StageProblem) -> Sequence[int] | None:
        """The places of the strategies of a stage's operators; None if none fits."""

    @abstractmethod
    def outlined(
        self, batches: MicroBatches, choices: StageChoices, stages: int, sparing: Sparing
    ) -> Outline | None:
        """The best pipeline with ``stages`` stages; None if none fits."""

    def whole(self, prices: RowPrices) -> Iterator[Sequence[int]]:
        """The fastest strategies on all devices, and the fastest that fit without recomputation."""
        for limit in (inf, self._limit):
            choice = StageChoices(prices, limit, self.places).best(0, len(prices.nodes), 1)
            if choice is not None:
                yield choice.places

    def pipelines(self, batches: MicroBatches, prices: RowPrices, stages: int) -> Iterator[Outline]:
        """The best pipelines without and with recomputation."""
        choices, recompute = StageChoices(prices, self._limit, self.places), self.setting.recompute
        sparings = [PLAIN] if recompute in PLAIN_FIRST else []
        sparings += [] if recompute is Recompute.NONE else [SPARING[recompute]]
        for sparing in sparings:
            check_time()
            outlined = self.outlined(batches, choices, stages, sparing)
            if outlined is not None:
                yield outlined

    @property
    def _limit(self) -> float:
        return ROOM * self.setting.machine.memory_limit()
