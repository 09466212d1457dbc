"""The plans of families of strategies on one graph, except those that are known not to be fastest.

A family is left out if a bound of its plans is no faster than the best known plan, or if it did not
come near the best plan of the graph before a rewrite. Plans of a large graph take long. As long as
it may still be rewritten, the first settings of overlapping communication are tried and the others
put off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from pcg.graph.graph import Graph
from pcg.machine import Machine
from search.choices import IndexRole
from search.cost.progress import Teller
from search.cost.unroll import NotAlike
from search.map.space.allow import Allowed, by_roles, computed_once, everything, intersection
from search.plan.families import FamilyKey, Strategies
from search.plan.fitting import Fitting
from search.plan.incumbent import PricedPlans, PricedTrial, SearchState
from search.plan.judging import Judge
from search.refine.tried import SimulatedChoice


@dataclass(frozen=True, eq=False)
class FamilyTries:
    """Tries families of strategies. ``machine``: all devices; ``dimensions``: the roles of indices
    that may be cut, or None for all; ``deep``: whether few blocks stand for all."""

    machine: Machine
    dimensions: frozenset[IndexRole] | None
    judge: Judge
    deep: bool
    teller: Teller
    _fittings: dict[tuple[PricedTrial, FamilyKey], Fitting] = field(
        init=False, default_factory=dict[tuple[PricedTrial, FamilyKey], Fitting]
    )
    _put_off: dict[PricedTrial, Fitting] = field(
        init=False, default_factory=dict[PricedTrial, Fitting]
    )
    """The strategies of graphs at which only a first look was taken."""

    def try_all(
        self,
        trial: PricedTrial,
        families: Iterable[Strategies],
        search: SearchState,
        *,
        at_first: bool,
    ) -> None:
        """Try families on one graph. ``at_first``: whether further settings are put off."""
        for allowed in families:
            if allowed.last and search.saves_nothing():
                continue
            if allowed.brief and not search.is_near(trial, allowed.key):
                continue
            if self._promises_no_gain(trial, allowed, search):
                continue
            self.teller.works_on(allowed.name, "map", lambda: trial.busy_bound)
            if allowed.data_parallel and not cuts_data(self.dimensions):
                search.data_parallel += self._to_compare(trial, allowed)
                continue
            self._note(trial, self.fitting(trial, allowed), search, at_first=at_first)

    def first_look(self, trial: PricedTrial, allowed: Strategies) -> None:
        """Find the first plans of strategies."""
        self.fitting(trial, allowed).first_look()

    def look_further(self, trial: PricedTrial, search: SearchState) -> None:
        """Find the plans of a graph that were put off, if there are any."""
        if trial in self._put_off:
            self._note(trial, self._put_off[trial], search, at_first=False)

    def fitting(self, trial: PricedTrial, allowed: Strategies) -> Fitting:
        """The plans of one family on one graph, which are found once."""
        key = trial, allowed.key
        if key not in self._fittings:
            mask = computed_once(self._masked(trial.graph, allowed.mask))
            self._fittings[key] = Fitting(trial, allowed, mask, self.deep)
        return self._fittings[key]

    def allowed(self, graph: Graph) -> Allowed:
        """The strategies of a graph that cut only the dimensions that may be cut."""
        return self._masked(graph, everything)

    def _masked(self, graph: Graph, mask: Allowed) -> Allowed:
        roles = self.dimensions
        return mask if roles is None else intersection(mask, by_roles(graph, roles))

    def _note(
        self, trial: PricedTrial, fitting: Fitting, search: SearchState, *, at_first: bool
    ) -> None:
        """Find plans of strategies, and note the fastest. ``at_first``: whether further settings
        are put off, if there are any and the first plans fit."""
        allowed = fitting.allowed
        made = fitting.first_look() if at_first and not allowed.brief else []
        if made:
            self._put_off[trial] = fitting
        else:
            made = list(fitting.plans(search))
        if allowed.data_parallel and trial.chooser.pricing.cost.machine == self.machine:
            search.data_parallel += made
        if made:
            search.note_family(trial, allowed.key, min(candidate.seconds for candidate in made))

    def _promises_no_gain(
        self, trial: PricedTrial, allowed: Strategies, search: SearchState
    ) -> bool:
        """Whether what some strategies promise is slower than the best known plan. It is computed
        where that takes less time than their plans. Data-parallel plans are found in any case, as
        others are compared with them."""
        has_rival = search.rival < inf and trial in search.fastest
        is_brief = allowed.brief and not allowed.data_parallel and search.known < inf
        if not allowed.is_bounded or not (has_rival or is_brief):
            return False
        return trial.promised(allowed.mask) > search.known

    def _to_compare(self, trial: PricedTrial, allowed: Strategies) -> PricedPlans:
        """The price on all devices of strategies that may not be used, for comparison."""
        if trial.chooser.pricing.cost.machine != self.machine:
            return ()

        def judge(made: SimulatedChoice) -> PricedPlans:
            return tuple(self.judge.judged(trial.chooser, made, 0.0))

        apart = replace(trial, judge=judge)
        try:
            return apart.first(0.0, allowed.mask)[0].judged
        except NotAlike:
            return ()


def cuts_data(dimensions: frozenset[IndexRole] | None) -> bool:
    """Whether samples may be divided. ``dimensions``: the roles of indices that may be cut, or None
    for all."""
    return dimensions is None or IndexRole.DATA in dimensions
