"""Plans of one family that fit in memory. Where the fastest do not, memory gets a price.

Problem: among the choices of strategies of a family, find a fast one that fits in memory.

Method: try the fastest choices first. If these do not fit, bisect the price of a byte between one
at which choices fit and one at which they do not, as for a Lagrange multiplier (Everett, Operations
Research 1963). The bisection ends when the two prices are within half of each other, after
``PRICES`` prices, or earlier if recomputation helps or nothing changes any more. The higher the
price, the longer steps take. So it also ends if the choices for a deep model do not fit, and even
with nearly all communication hidden would be slower than a known plan.

A heuristic: choices that are best at no price are not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf

from search.cost.unroll import NotAlike
from search.map.space.allow import Allowed
from search.plan.families import Strategies
from search.plan.incumbent import PricedPlan, PricedPlans, PricedTrial, SearchState
from search.refine.overlap import LEAST_SAVED
from search.refine.tried import Tried

PRICES = 12
"""The most prices of a byte that are tried to make a plan fit."""
FEW_PRICES = 4
"""The most prices that are tried once a plan with recomputation fits."""
SAME = 2
"""After this many prices in a row without a change, a deep model is taken to fit at no price."""


@dataclass(frozen=True, eq=False)
class Fitting:
    """Tries the strategies of one family on one graph. ``mask``: those of the family that may be
    used; ``deep``: whether few blocks stand for all."""

    trial: PricedTrial
    allowed: Strategies
    mask: Allowed
    deep: bool

    def first_look(self) -> list[PricedPlan]:
        """The plans that take least time to find, if one of them fits. Otherwise none."""
        plans = _judged(self._first)
        return plans if any(plan.fits_plainly for plan in plans) else []

    def plans(self, search: SearchState) -> Iterator[PricedPlan]:
        """The fastest plans. If they take too much memory, also plans that take less, unless a
        known plan is as fast."""
        first = self._first
        if not first:
            return
        best = _judged(first)
        if not self.allowed.brief:
            first = self._further(first)
            best = [*_judged(first), *self._in_parts(min(first, key=lambda plan: plan.seconds))]
        yield from best
        fastest = min(plan.seconds for plan in best)
        if search.known <= fastest or any(plan.fits_plainly for plan in best):
            return
        yield from self._priced(search, best[0].seconds / best[0].limit, first)

    def _priced(
        self, search: SearchState, high: float, first: list[Tried[PricedPlans]]
    ) -> Iterator[PricedPlan]:
        """Plans at several prices of a byte. ``high``: the first price; ``first``: the plans at no
        price."""
        low = 0.0
        last, same, is_found = first, 0, False
        for number in range(PRICES):
            if number >= FEW_PRICES and search.fits_sparing:
                return
            price = high if low == 0.0 else (low + high) / 2
            plans = self._tries(price)
            same = same + 1 if plans == last else 0
            if same == SAME and self.deep and not is_found:
                return
            last, tried = plans, _judged(plans)
            yield from tried
            if any(plan.fits_plainly for plan in tried):
                high, is_found = price, True
                if low > 0.0 and high < 1.5 * low:
                    return
                low = low or price / 4
            elif self._are_too_slow(plans, search):
                return
            else:
                low, high = price, high if high > price else price * 4

    def _are_too_slow(self, plans: list[Tried[PricedPlans]], search: SearchState) -> bool:
        """Whether a known plan is faster than all these plans could be, as far as is known."""
        if not (self.deep and plans and self.allowed.is_bounded) or search.known == inf:
            return False
        return all(self.trial.promised_by(one.choice) > search.known for one in plans)

    @cached_property
    def _first(self) -> list[Tried[PricedPlans]]:
        """The plans of the first settings, with memory for free."""
        return self._tries(0.0)

    def _further(self, first: list[Tried[PricedPlans]]) -> list[Tried[PricedPlans]]:
        try:
            return self.trial.further(first, self.mask)
        except NotAlike:
            return first

    def _tries(self, price: float) -> list[Tried[PricedPlans]]:
        """The plans of the fastest choices at a price of a byte. None if they do not come out alike
        in all blocks."""
        trial, allowed = self.trial, self.allowed
        try:
            plans = trial.first(price, self.mask)
            return [trial.fully_sharded(one) if allowed.fully_sharded else one for one in plans]
        except NotAlike:
            return []

    def _in_parts(self, tried: Tried[PricedPlans]) -> PricedPlans:
        """A plan with its weights fully sharded, if it does not fit, or if a notable part of its
        step comes after the backward pass: this is the part that sharding shortens."""
        whole = tried.judged[0]
        if whole.fits and whole.after < LEAST_SAVED * whole.seconds:
            return ()
        try:
            return self.trial.fully_sharded(tried).judged
        except NotAlike:
            return ()


def _judged(plans: Iterable[Tried[PricedPlans]]) -> list[PricedPlan]:
    return [candidate for plan in plans for candidate in plan.judged]
