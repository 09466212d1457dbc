"""The plans that a search over strategies has priced so far, and the best of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from pcg.graph.graph import Node
from search.cost.planned import SearchReport, Stop
from search.cost.survey import RewriteSurvey
from search.map.choose.choosing import Choice
from search.plan.families import FamilyKey
from search.refine.overlap import Trial
from search.substitute.rewrites import is_large


@dataclass(frozen=True, eq=False)
class PricedPlan:
    """A plan that was priced. ``seconds`` of a step, ``memory`` bytes on the fullest device, of
    ``limit`` that it has. The plan itself is made again of the choice where it is wanted."""

    choice: Choice
    seconds: float
    memory: int
    limit: int
    strategies: int
    updating: float
    """Seconds for which a device updates weights at most."""
    after: float
    """Seconds of a step after the backward pass: for what is left to exchange, and updates."""
    recompute: frozenset[Node] = frozenset()
    """The operators whose results are recomputed in the backward pass."""
    spares: bool = False
    """Whether these are more than chains of pointwise operators, so that it fits."""

    @property
    def fits(self) -> bool:
        return self.memory <= self.limit

    @property
    def fits_plainly(self) -> bool:
        """Whether it fits without sparing memory by recomputation."""
        return self.fits and not self.spares


PricedPlans = tuple[PricedPlan, ...]
PricedTrial = Trial[PricedPlans]


NEAR_BEST = 5e-3
"""Of the seconds of a graph's best plan, how much more the best plan of a family may take, for the
family to be tried on what a rewrite makes of the graph: as much as rewrites of a large graph gain
at least."""


@dataclass
class SearchState:
    """What was found so far. ``fastest``: seconds of the best plan of each graph; ``by_family``:
    the same for each family of strategies."""

    priced: dict[PricedPlan, PricedTrial] = field(default_factory=dict[PricedPlan, PricedTrial])
    data_parallel: list[PricedPlan] = field(default_factory=list[PricedPlan])
    fastest: dict[PricedTrial, float] = field(default_factory=dict[PricedTrial, float])
    trials: list[PricedTrial] = field(default_factory=list[PricedTrial])
    """Those that were begun, whether or not their bounds ruled them out."""
    by_family: dict[PricedTrial, dict[FamilyKey, float]] = field(
        default_factory=dict[PricedTrial, dict[FamilyKey, float]]
    )
    came_of: dict[PricedTrial, PricedTrial] = field(default_factory=dict[PricedTrial, PricedTrial])
    """For a graph that a rewrite made, as it is cut, the graph before."""
    firsts: dict[PricedTrial, int] = field(default_factory=dict[PricedTrial, int])
    """Of a graph on a part of the machine, the number of the first device, where that is not 0."""
    rewritten: set[PricedTrial] = field(default_factory=set[PricedTrial])
    """Those of graphs that rewrites made."""
    survey: RewriteSurvey | None = None
    """What came of rewrites of all graphs, but for the plans; None where none were looked for."""
    rival: float = inf
    """Seconds of a plan of another kind, which is known beside those that were priced."""

    def surveyed(self, survey: RewriteSurvey) -> None:
        """This came of the rewrites of one graph."""
        self.survey = survey if self.survey is None else self.survey.beside(survey)

    @property
    def rewriting(self) -> RewriteSurvey | None:
        """What came of rewrites of all graphs; None where none were looked for."""
        if self.survey is None:
            return None
        fastest = {False: inf, True: inf}
        for plan, trial in self.priced.items():
            if plan.fits:
                of = trial in self.rewritten
                fastest[of] = min(fastest[of], plan.seconds)
        return replace(self.survey, plain=fastest[False], rewritten=fastest[True])

    def report(self, stop: Stop, phases: Mapping[str, float], known: int) -> SearchReport:
        """What was done. ``phases``: seconds of each; ``known``: prices that were known before."""
        strategies = sum(c.strategies for c in self.priced)
        return SearchReport(strategies, len(self.priced), stop, phases, known, self.rewriting)

    def tried(self, trial: PricedTrial, family: FamilyKey, seconds: float) -> None:
        """The best plan of a family on a graph takes so many seconds a step."""
        self.fastest[trial] = min(seconds, self.fastest.get(trial, inf))
        self.by_family.setdefault(trial, {})[family] = seconds

    def rules_out(self, trial: PricedTrial) -> bool:
        """Whether no plan of a graph is faster than one that is known, by its bound. Of what a
        rewrite made, as it is cut, that is known to be faster."""
        return self.known < inf and trial not in self.came_of and trial.at_best > self.known

    def is_near(self, trial: PricedTrial, family: FamilyKey) -> bool:
        """Whether a family may lead to the best plan of a graph: of one that a rewrite made of a
        large graph, of which the best plan fits, a family that came near that plan."""
        base = self.came_of.get(trial)
        if base is None or not is_large(base.graph) or self.known > self.fastest[base]:
            return True
        return self.by_family[base].get(family, inf) <= (1 + NEAR_BEST) * self.fastest[base]

    def is_outdone(self, trial: PricedTrial) -> bool:
        """Whether a graph is large, and what a rewrite made of it has a faster plan."""
        own = self.fastest.get(trial, inf)
        faster = (
            self.fastest.get(new, inf) < own for new, old in self.came_of.items() if old is trial
        )
        return is_large(trial.graph) and any(faster)

    @property
    def known(self) -> float:
        """Seconds of the fastest plan that fits."""
        own = min((c.seconds for c in self.priced if c.fits), default=inf)
        return min(own, self.rival)

    @property
    def fits_sparing(self) -> bool:
        """Whether a plan is known that spares memory by recomputation, and so fits."""
        return any(c.fits and c.spares for c in self.priced)

    @property
    def base(self) -> PricedTrial:
        """The graph of the fastest plan."""
        return min(self.fastest, key=lambda trial: self.fastest[trial])

    def saves_nothing(self) -> bool:
        """Whether data parallelism would be slower than a plan that fits even without updates."""
        return self.known <= min((c.seconds - c.updating for c in self.data_parallel), default=0.0)
