"""The plan of a search's fastest choice, completed: its derivation, its schedule and its estimates.

Problem: a search prices choices without their derivations, and a deep model with few of its blocks.
The plan that is returned needs both, also if time is up or the user waits after Ctrl-C.

Method: all operators are cut by the templates of the search (``search.map.rules.templates``). The
seconds and bytes of a deep model are those of its few blocks unrolled, equal to those of the whole
(``search.cost.unroll``). If there is time, the whole is simulated and counted again.
Complexity: the operators of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pcg.collection import uncollected
from pcg.graph.graph import Graph
from pcg.plan.plan import Plan
from search.cost.cost import CostModel
from search.cost.unroll import NotAlike
from search.map.choose.choosing import Choice
from search.plan.fewer_devices import begun_at
from search.plan.finish import finished
from search.plan.incumbent import PricedPlan, PricedTrial, SearchState
from search.plan.judging import Judge
from search.split.blocks import Folded
from search.substitute.variants import Variant, whole_choice, whole_variant
from substitutions.rules.store import Library


@dataclass(frozen=True)
class Completion:
    """Completes the plans of a search. ``short``: the graph that was searched; ``variants``: that
    of each graph that was tried; ``is_early``: whether the search was ended early, or its time is
    nearly up."""

    graph: Graph
    short: Folded
    library: Library
    cost: CostModel
    judge: Judge
    variants: Mapping[Graph, Variant]
    is_early: bool

    @uncollected()
    def plan(self, name: str, search: SearchState) -> Plan:
        """Return the plan of the fastest choice that fits the whole graph, and is the same there if
        few blocks stood for all. Raises NotAlike if there is none."""
        fitting = sorted((c for c in search.priced if c.fits), key=lambda c: c.seconds)
        for best in fitting:
            trial = search.priced[best]
            made = self._completed(name, best, trial, search.firsts.get(trial, 0))
            if made is not None:
                return made
        raise NotAlike

    def _completed(
        self, name: str, best: PricedPlan, trial: PricedTrial, first: int
    ) -> Plan | None:
        """The plan of a choice; None if it does not fit the whole graph, or differs there.
        ``first``: the number of its first device."""
        choice, before = best.choice, trial.before
        if self.short.more:
            variant = self.variants[trial.graph]
            variant = whole_variant(variant, self.graph, self.short.more, self.library)
            whole = None if variant is None else self._whole_choice(choice, variant)
            if variant is None or whole is None:
                return None
            choice, before = whole, variant.derivation
        cut = begun_at(first, trial.cut(choice, before))
        steps = cut.schedule()
        if self.short.more:
            few = begun_at(first, trial.cut(best.choice, trial.before))
            remade = self.judge.on_whole(best, few, steps, self.cost, again=not self.is_early)
            if remade is None or not remade.fits:
                return None
            best = remade
        return finished(
            name,
            self.graph,
            cut,
            steps,
            self.cost,
            self.library.hash,
            seconds=best.seconds,
            memory=best.memory,
            recompute=best.recompute,
            short=self.short,
        )

    def _whole_choice(self, choice: Choice, variant: Variant) -> Choice | None:
        return whole_choice(choice, variant.graph, self.short.more)
