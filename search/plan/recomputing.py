"""The recomputation of the fastest plans, made less.

Problem: a plan that fits because of recomputation may recompute more than it must, as many plans
are priced and few of them closely.

Method: for the fastest plans that fit so, units are dropped and exchanged
(``search.refine.kept_units``), and the result is simulated. Cuts, devices and order stay.

Complexity: up to ``WORK`` steps in all counts of memory of a plan. A heuristic.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from search.cost.progress import Teller
from search.plan.incumbent import PricedPlan, SearchState
from search.plan.judging import Judge

WORK = 400_000
"""The most steps of all counts of memory of a plan, added up."""
MOST_PLANS, NEAR = 3, 1.05
"""The most plans, and how slow they may be: so many times as slow as the fastest."""


def recompute_less(search: SearchState, judge: Judge, teller: Teller) -> None:
    """Price the fastest plans that fit because of recomputation, with less of it."""
    for plan in list(islice(_plans(search), MOST_PLANS)):
        trial = search.priced[plan]
        teller.works_on("recomputing less", "refine", lambda of=trial: of.busy_bound)
        steps = trial.builder.placed(plan.choice).schedule()
        less = judge.recomputing_less(plan, steps, trial.chooser.pricing.cost, WORK)
        if less is not None:
            search.priced[less] = trial
            teller.priced(less.seconds)


def _plans(search: SearchState) -> Iterator[PricedPlan]:
    most = NEAR * search.known
    for plan in sorted(search.priced, key=lambda plan: plan.seconds):
        if plan.fits and plan.spares and plan.seconds <= most:
            yield plan
