"""The plans that a search over strategies has priced so far, and the best of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from pcg.graph.graph import Graph, Node
from search.cost.planned import DataParallelStep, SearchReport, Stop
from search.cost.survey import RewriteSurvey
from search.map.choose.choosing import Choice
from search.plan.families import FamilyKey
from search.refine.overlap import Trial
from search.substitute.rewrites import is_large


@dataclass(frozen=True, eq=False)
class PricedPlan:
    """A plan that was priced. ``seconds``: of a step; ``memory``: bytes on the fullest device;
    ``limit``: its available bytes; ``strategies``: the number that the choice was made among. The
    plan itself is rebuilt from the choice when it is needed."""

    choice: Choice
    seconds: float
    memory: int
    limit: int
    strategies: int
    after: float
    """Seconds of a step after the backward pass: for the rest of the exchange, and updates."""
    sharded_at_best: float
    """A lower bound of the seconds of a step with the same strategies and fully sharded weights."""
    recompute: frozenset[Node] = frozenset()
    """The operators whose results are recomputed in the backward pass."""
    spares: bool = False
    """Whether more than chains of pointwise operators is recomputed, so that the plan fits."""

    @property
    def fits(self) -> bool:
        return self.memory <= self.limit

    @property
    def fits_plainly(self) -> bool:
        """Whether it fits without recomputation that saves memory."""
        return self.fits and not self.spares


def fastest_by_graph(plans: Iterable[PricedPlan]) -> dict[Graph, PricedPlan]:
    """The fastest of some plans for each graph, the fastest first."""
    by_graph: dict[Graph, PricedPlan] = {}
    for plan in sorted(plans, key=lambda plan: plan.seconds):
        by_graph.setdefault(plan.choice.graph, plan)
    return by_graph


PricedPlans = tuple[PricedPlan, ...]
PricedTrial = Trial[PricedPlans]


NEAR_BEST = 5e-3
"""A family is tried on another form of a large graph if its best plan for the first form took at
most this fraction longer than that form's best plan: as much as rewrites of a large graph gain at
least."""


FAR = 1.25
"""A graph is not rewritten for the sake of plans without stages if its best such plan takes more
than this many times the known plan of another kind. Rewrites of large graphs gain a few percent."""


@dataclass
class SearchState:
    """The state of a search. ``fastest``: the seconds of the best plan of each graph;
    ``by_family``: the same by family of strategies."""

    priced: dict[PricedPlan, PricedTrial] = field(default_factory=dict[PricedPlan, PricedTrial])
    data_parallel: list[PricedPlan] = field(default_factory=list[PricedPlan])
    fastest: dict[PricedTrial, float] = field(default_factory=dict[PricedTrial, float])
    trials: list[PricedTrial] = field(default_factory=list[PricedTrial])
    """The trials that were begun, whether or not a bound ruled them out."""
    by_family: dict[PricedTrial, dict[FamilyKey, float]] = field(
        default_factory=dict[PricedTrial, dict[FamilyKey, float]]
    )
    rewritten_from: dict[PricedTrial, PricedTrial] = field(
        default_factory=dict[PricedTrial, PricedTrial]
    )
    """For a graph that was rewritten as it is cut, the trial of the graph before."""
    firsts: dict[PricedTrial, int] = field(default_factory=dict[PricedTrial, int])
    """For a graph on a part of the machine, the number of the first device, if it is not 0."""
    rewritten: set[PricedTrial] = field(default_factory=set[PricedTrial])
    """The trials of rewritten graphs."""
    survey: RewriteSurvey | None = None
    """The survey of rewrites of all graphs, without the times of plans; None if the search looked
    for no rewrites."""
    rival: float = inf
    """Seconds of a step of a plan of another kind, known beside those that were priced."""

    def surveyed(self, survey: RewriteSurvey) -> None:
        """Add the survey of the rewrites of one graph."""
        self.survey = survey if self.survey is None else self.survey.beside(survey)

    @property
    def rewriting(self) -> RewriteSurvey | None:
        """The survey of rewrites of all graphs; None if the search looked for no rewrites."""
        if self.survey is None:
            return None
        fastest = {False: inf, True: inf}
        for plan, trial in self.priced.items():
            if plan.fits:
                is_rewritten = trial in self.rewritten
                fastest[is_rewritten] = min(fastest[is_rewritten], plan.seconds)
        return replace(self.survey, plain=fastest[False], rewritten=fastest[True])

    def report(self, stop: Stop, phases: Mapping[str, float], known: int) -> SearchReport:
        """The report of the search. ``phases``: seconds of each; ``known``: how often a price was
        already known."""
        strategies = sum(c.strategies for c in self.priced)
        return SearchReport(strategies, len(self.priced), stop, phases, known, self.rewriting)

    def note_family(self, trial: PricedTrial, family: FamilyKey, seconds: float) -> None:
        """Note the seconds of a step of the best plan of a family on a graph."""
        self.fastest[trial] = min(seconds, self.fastest.get(trial, inf))
        self.by_family.setdefault(trial, {})[family] = seconds

    def rules_out(self, trial: PricedTrial) -> bool:
        """Whether the bound of a graph says that none of its plans beats the best known plan. Never
        so for a graph that was rewritten as it is cut, which is known to be faster."""
        return self.known < inf and trial not in self.rewritten_from and trial.at_best > self.known

    def is_near(self, trial: PricedTrial, family: FamilyKey) -> bool:
        """Whether a family may lead to the best plan of a graph. For a large graph that is a form
        of another one, which fitted: whether the family's plan came near the best one there."""
        base = self._other_form(trial)
        if base is None or self.known > self.fastest[base]:
            return True
        return self.by_family[base].get(family, inf) <= (1 + NEAR_BEST) * self.fastest[base]

    def _other_form(self, trial: PricedTrial) -> PricedTrial | None:
        """The first large graph that was planned on the same mesh; for a graph that was rewritten
        as it is cut, the graph before if that is large."""
        base = self.rewritten_from.get(trial)
        if base is not None:
            return base if is_large(base.graph) else None
        others = (one for one in self.fastest if one is not trial)
        large = (one for one in others if is_large(one.graph) and is_large(trial.graph))
        return next((one for one in large if one.chooser.mesh == trial.chooser.mesh), None)

    def is_outdone(self, trial: PricedTrial) -> bool:
        """Whether a graph is large, and a rewritten form of it has a faster plan."""
        fastest = self.fastest.get(trial, inf)
        faster = (
            self.fastest.get(new, inf) < fastest
            for new, old in self.rewritten_from.items()
            if old is trial
        )
        return is_large(trial.graph) and any(faster)

    @property
    def known(self) -> float:
        """Seconds of a step of the fastest known plan that fits."""
        priced = min((c.seconds for c in self.priced if c.fits), default=inf)
        return min(priced, self.rival)

    @property
    def fits_sparing(self) -> bool:
        """Whether a plan is known that fits because of recomputation."""
        return any(c.fits and c.spares for c in self.priced)

    @property
    def base(self) -> PricedTrial:
        """The trial of the fastest plan."""
        return min(self.fastest, key=lambda trial: self.fastest[trial])

    @property
    def is_far_behind(self) -> bool:
        """Whether a plan of another kind is so much faster that no rewrite makes up for it."""
        return FAR * self.rival < min(self.fastest.values(), default=inf)

    @property
    def data_parallel_step(self) -> DataParallelStep | None:
        """The step of the fastest data-parallel plan that fits, or else of the fastest one. None if
        none was priced."""
        steps = [DataParallelStep(plan.seconds, plan.fits) for plan in self.data_parallel]
        return min(steps, key=lambda step: (not step.fits, step.seconds), default=None)

    def saves_nothing(self) -> bool:
        """Whether a known plan that fits beats data parallelism with fully sharded weights, however
        well that hides its communication."""
        return self.known <= min((c.sharded_at_best for c in self.data_parallel), default=0.0)
