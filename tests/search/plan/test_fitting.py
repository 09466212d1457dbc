"""Prices of memory end when the plans of a deep model have no chance any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest

from search.plan.families import Strategies
from search.plan.fitting import PRICES, Fitting
from search.plan.incumbent import PricedPlan, SearchState
from search.refine.tried import Tried

NOTHING: Any = None
LIMIT = 100


@dataclass
class Trials:
    """Choices that never fit. Each price promises one second more than the price before."""

    prices: list[float] = field(default_factory=list[float])

    def first(self, price: float, _: object) -> list[Tried[tuple[PricedPlan, ...]]]:
        self.prices.append(price)
        over = LIMIT + 1000 - len(self.prices)
        seconds = inf if price else 1.0
        plan = PricedPlan(NOTHING, seconds, over, LIMIT, 1, 0.0, 0.0)
        choice: Any = float(len(self.prices))
        return [Tried(choice, seconds, {}, (plan,))]

    def promised_by(self, choice: float) -> float:
        return choice


@pytest.mark.parametrize(
    ("rival", "deep", "tried"),
    [(4.5, True, 5), (1.5, True, 2), (0.5, True, 1), (inf, True, 1 + PRICES), (4.5, False, None)],
)
def test_prices_of_memory_end_if_a_deep_model_is_outdone(
    rival: float, deep: bool, tried: int | None
):
    """The first price, at which memory is free, is tried in any case."""
    trials: Any = Trials()
    search = SearchState(rival=rival)
    plans = list(Fitting(trials, Strategies("any", NOTHING), NOTHING, deep).plans(search))
    assert len(plans) == len(trials.prices) == (1 + PRICES if tried is None else tried)
    assert sorted(trials.prices) == trials.prices
