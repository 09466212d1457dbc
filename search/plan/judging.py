"""The price of a plan: seconds of a step and bytes on the fullest device, with recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from pcg.graph.graph import Graph, Node
from pcg.placement.schedule import Schedule
from search.choices import Recompute
from search.cost.cost import CostModel
from search.cost.memory import peak_memory
from search.cost.pointwise_chains import worth_recomputing
from search.cost.progress import Phases, check_time
from search.cost.simulate import busy, recomputing
from search.cost.tasks import SYNC, UPDATE
from search.cost.units import (
    AlikeSpans,
    CountBytes,
    forward_seconds,
    in_whole,
    recomputations_to_fit,
    union,
    units_of,
)
from search.cost.unroll import ONCE, NotAlike, Repeated
from search.map.building import Cut
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.fully_sharded import PlacedGraph
from search.plan.finish import memory_limit
from search.plan.incumbent import PricedPlan, PricedPlans
from search.refine.kept_units import KeptUnits
from search.refine.tried import SimulatedChoice
from search.split.blocks import blocks_of, repeated


@dataclass(frozen=True)
class Judge:
    """Judges plans on the machine that they were chosen for. ``more``: the number of further blocks
    that the middle block of a graph stands for."""

    phases: Phases
    more: int
    deep: bool
    """Whether few blocks are searched in place of all."""
    recompute: Recompute = Recompute.AUTO
    """Which tensors may be recomputed."""

    def judged(self, chooser: Chooser, made: SimulatedChoice, known: float) -> Iterator[PricedPlan]:
        """A plan without recomputation; and if it does not fit, with recomputation of operators
        whose results take much memory and little time. ``known``: seconds of a plan that fits; a
        plan that is not faster is not tried with further recomputation."""
        cost, steps = chooser.pricing.cost, made.steps
        limit = memory_limit(cost.machine, made.cut.views)
        strategies = sum(len(chooser.spaces.of(node)) for node in made.choice.strategies)
        often = repeated(made.choice.graph, self.more)
        held = self.memory(steps, cost, frozenset(), often)
        simulation = made.run.simulation
        ends = simulation.sync + simulation.update, _sharded_at_best(made, cost)
        plain = PricedPlan(made.choice, made.seconds, held, limit, strategies, *ends)
        if self.recompute in (Recompute.AUTO, Recompute.NONE):
            yield plain
        if self.recompute is Recompute.NONE or (self.recompute is Recompute.AUTO and plain.fits):
            return
        # In other modes, the plan without recomputation is none of those that are priced.
        too_slow = self.deep and self.recompute is Recompute.AUTO and plain.seconds > known
        recomputing_plans: list[PricedPlan] = []
        for nodes, spares in self._recomputed(made, cost, limit, known):
            # A recomputation that does not come out alike in all blocks cannot stand for the whole.
            with suppress(NotAlike):
                given = plain, steps, cost, nodes, often
                recomputing_plan = self._with_recomputation(*given, too_slow=too_slow)
                recomputing_plans.append(replace(recomputing_plan, spares=spares))
        yield from recomputing_plans or ([plain] if self.recompute is not Recompute.AUTO else ())

    def _with_recomputation(
        self,
        plain: PricedPlan,
        steps: Schedule,
        cost: CostModel,
        nodes: frozenset[Node],
        often: Repeated,
        *,
        too_slow: bool = False,
    ) -> PricedPlan:
        """The plan with the given operators recomputed. ``too_slow``: whether it is slower than a
        known plan without that. Then it is not simulated and has infinite seconds: recomputation
        adds tasks to streams that run in order, so no step becomes shorter by it."""
        if too_slow:
            seconds = inf
        else:
            seconds = recomputing(steps, cost, nodes, often).simulation.step_seconds
        memory = self.memory(steps, cost, nodes, often)
        return replace(plain, seconds=seconds, memory=memory, recompute=nodes)

    def _recomputed(
        self, made: SimulatedChoice, cost: CostModel, limit: int, known: float
    ) -> Iterator[tuple[frozenset[Node], bool]]:
        """The sets of operators to recompute in a plan, each with whether it is more than chains of
        pointwise operators, which are always worth it."""
        steps, graph = made.steps, made.choice.graph
        if self.recompute is Recompute.AUTO:
            chains = self.phases.timed("memory", lambda: self.recomputed(graph, steps))
            if chains:
                yield chains, False
            if made.seconds >= known:
                return
        for nodes in self._recomputations(graph, steps, cost, limit):
            yield nodes, self.recompute is Recompute.AUTO

    def _recomputations(
        self, graph: Graph, steps: Schedule, cost: CostModel, limit: int
    ) -> list[frozenset[Node]]:
        """The sets of operators to recompute for a schedule to fit. If few blocks stand for all,
        the same is recomputed in each; there is no such set if it does not come out alike."""
        counted, alike = self._counting(graph, steps, cost), self._alike_spans(graph, steps)
        try:
            given = steps, forward_seconds(steps, cost), counted, limit, self.recompute
            return list(recomputations_to_fit(*given, alike=alike))
        except NotAlike:
            return []

    def _counting(self, graph: Graph, steps: Schedule, cost: CostModel) -> CountBytes:
        often = repeated(graph, self.more)
        return lambda nodes: self.memory(steps, cost, nodes, often)

    def _alike_spans(self, graph: Graph, steps: Schedule) -> AlikeSpans | None:
        """The spans in which the same is recomputed, if few blocks stand for all."""
        blocks = blocks_of(graph) if self.deep else None
        return None if blocks is None else blocks.spans(steps)

    def recomputing_less(
        self, plan: PricedPlan, steps: Schedule, cost: CostModel, work: int
    ) -> PricedPlan | None:
        """A plan that fits because of recomputation, with some of it left out or exchanged. None if
        that makes no step shorter. ``work``: the most steps of all counts of memory, added up."""
        graph, most = plan.choice.graph, work // len(steps.steps)
        counted, alike = self._counting(graph, steps, cost), self._alike_spans(graph, steps)
        try:
            units = units_of(steps, forward_seconds(steps, cost), counted, alike=alike)
            recomputed = tuple(unit for unit in units if unit.nodes <= plan.recompute)
            if union(recomputed) != plan.recompute:
                return None
            kept = KeptUnits(units, counted, plan.limit, cost.itemsize, most)
            nodes = union(kept.fewer(recomputed))
            often = repeated(graph, self.more)
            better = self._with_recomputation(plan, steps, cost, nodes, often)
        except NotAlike:
            return None
        return better if better.fits and better.seconds < plan.seconds else None

    def unfit(
        self, chooser: Chooser, choice: Choice, cut: PlacedGraph, steps: Schedule
    ) -> PricedPlans | None:
        """The price of a plan that does not fit with any recomputation, with infinite seconds. None
        if it fits."""
        cost = chooser.pricing.cost
        limit = memory_limit(cost.machine, cut.views)
        often = repeated(choice.graph, self.more)
        held = self.memory(steps, cost, frozenset(), often)
        for nodes in self._least(choice.graph, steps, cost) if held > limit else ():
            with suppress(NotAlike):
                held = min(held, self.memory(steps, cost, nodes, often))
        if held <= limit:
            return None
        strategies = sum(len(chooser.spaces.of(node)) for node in choice.strategies)
        return (PricedPlan(choice, inf, held, limit, strategies, inf, 0.0),)

    def _least(self, graph: Graph, steps: Schedule, cost: CostModel) -> Iterator[frozenset[Node]]:
        """The sets of operators to recompute for a schedule to take least memory."""
        if self.recompute is Recompute.NONE:
            return
        if self.recompute is Recompute.AUTO:
            yield self.recomputed(graph, steps)
        yield from self._recomputations(graph, steps, cost, 0)

    def on_whole(
        self, best: PricedPlan, few: Cut, steps: Schedule, cost: CostModel, *, again: bool
    ) -> PricedPlan | None:
        """The price for the whole graph of a plan that was found with few blocks. ``few``: its cut
        graph with few blocks; ``steps``: the schedule of the whole graph; ``again``: whether the
        whole is simulated and counted again. None if the recomputation differs there."""
        nodes = best.recompute
        if nodes:
            few_steps = few.schedule()
            try:
                nodes = in_whole(few_steps, steps, repeated(best.choice.graph, self.more), nodes)
            except NotAlike:
                return None
        if not again:
            return replace(best, recompute=nodes)
        return self._with_recomputation(best, steps, cost, nodes, ONCE)

    def recomputed(self, graph: Graph, steps: Schedule) -> frozenset[Node]:
        """The operators of a schedule that are always worth recomputing. If blocks stand for
        others, they are the same in all blocks."""
        blocks = blocks_of(graph) if self.deep else None
        return worth_recomputing(steps, () if blocks is None else blocks.crossing(steps))

    def memory(
        self, steps: Schedule, cost: CostModel, recomputed: frozenset[Node], often: Repeated
    ) -> int:
        check_time()  # of the search under way, which these phases need not be
        return self.phases.timed(
            "memory", lambda: peak_memory(steps, cost.training, recomputed, often).total
        )


def _sharded_at_best(made: SimulatedChoice, cost: CostModel) -> float:
    """A lower bound of the seconds of a step with the same strategies and fully sharded weights.
    Gradients are scattered and weights gathered, both in the narrow format, which is as long as the
    exchange. The rest of the exchange after the backward pass, and updates, may be gone."""
    exchange, formats = busy(made.run, SYNC), cost.training.formats
    rest = made.seconds - made.run.simulation.sync - busy(made.run, UPDATE)
    return max(rest, exchange * formats.narrow / formats.wide)
