"""What a plan takes: seconds of a step and bytes on the fullest device, recomputed or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from pcg.graph.graph import Graph, Node
from pcg.machine import Machine
from pcg.placement.schedule import Schedule
from search.choices import Recompute
from search.cost.chains import worth_recomputing
from search.cost.cost import CostModel
from search.cost.memory import peak_memory
from search.cost.progress import Phases
from search.cost.simulate import recomputing
from search.cost.units import forward_seconds, ways_to_fit
from search.cost.unroll import Repeated
from search.mesh.choose.blocks import blocks_of, repeated
from search.mesh.choose.choosing import Choice, Chooser
from search.mesh.plan.finish import memory_limit
from search.mesh.plan.incumbent import PricedPlan, PricedPlans
from search.mesh.plan.overlap import Simulated, updates
from search.mesh.rules.fully_sharded import PlacedGraph


@dataclass(frozen=True)
class Judge:
    """Judges plans for a machine. ``more``: blocks for which the middle block of a graph stands,
    beside itself."""

    machine: Machine
    phases: Phases
    more: int
    deep: bool
    """Whether few blocks are searched for all."""
    recompute: Recompute = Recompute.AUTO
    """What may be recomputed."""

    def judged(self, chooser: Chooser, made: Simulated, known: float) -> Iterator[PricedPlan]:
        """A plan, and where it doesn't fit, with recomputing what takes much memory and little time
        to make. ``known``: seconds of a plan that fits; one that is not faster needs no other."""
        cost, steps = chooser.pricing.cost, made.steps
        limit = memory_limit(self.machine, made.cut.views)
        strategies = sum(len(chooser.spaces.of(node)) for node in made.choice.strategies)
        often = repeated(made.choice.graph, self.more)
        held = self.memory(steps, cost, frozenset(), often)
        simulation = made.run.simulation
        ends = updates(made.run), simulation.sync + simulation.update
        plain = PricedPlan(made.choice, made.seconds, held, limit, strategies, *ends)
        if self.recompute in (Recompute.AUTO, Recompute.NONE):
            yield plain
        if self.recompute is Recompute.NONE or (self.recompute is Recompute.AUTO and plain.fits):
            return
        less = [
            replace(
                plain,
                seconds=recomputing(steps, cost, nodes, often).simulation.step_seconds,
                memory=self.memory(steps, cost, nodes, often),
                recompute=nodes,
                spares=spares,
            )
            for nodes, spares in self._recomputed(made, cost, limit, known)
        ]
        yield from less or ([plain] if self.recompute is not Recompute.AUTO else ())

    def _recomputed(
        self, made: Simulated, cost: CostModel, limit: int, known: float
    ) -> Iterator[tuple[frozenset[Node], bool]]:
        """What may be recomputed in a plan, and whether that is more than needs no thought."""
        steps, graph = made.steps, made.choice.graph
        often = repeated(graph, self.more)

        def counted(nodes: frozenset[Node]) -> int:
            return self.memory(steps, cost, nodes, often)

        if self.recompute is Recompute.AUTO:
            chains = self.phases.timed("memory", lambda: self.recomputed(graph, steps))
            if chains:
                yield chains, False
            if made.seconds >= known:
                return
        if self.deep:
            return
        seconds = forward_seconds(steps, cost)
        for nodes in ways_to_fit(steps, seconds, counted, limit, self.recompute):
            yield nodes, self.recompute is Recompute.AUTO

    def unfit(
        self, chooser: Chooser, choice: Choice, cut: PlacedGraph, steps: Schedule
    ) -> PricedPlans | None:
        """A plan that does not fit, whatever is recomputed; its seconds are not asked for. None for
        one that fits."""
        cost, limit = chooser.pricing.cost, memory_limit(self.machine, cut.views)
        often = repeated(choice.graph, self.more)
        held = self.memory(steps, cost, frozenset(), often)
        if held > limit and (recomputed := self.recomputed(choice.graph, steps)):
            held = min(held, self.memory(steps, cost, recomputed, often))
        if held <= limit:
            return None
        strategies = sum(len(chooser.spaces.of(node)) for node in choice.strategies)
        return (PricedPlan(choice, inf, held, limit, strategies, inf, inf),)

    def again(
        self, best: PricedPlan, choice: Choice, steps: Schedule, cost: CostModel
    ) -> PricedPlan:
        """A plan as it is for a whole graph, for which it was found with few blocks."""
        recompute = self.recomputed(choice.graph, steps) if best.recompute else best.recompute
        often = repeated(choice.graph, self.more)
        memory = self.memory(steps, cost, recompute, often)
        seconds = recomputing(steps, cost, recompute, often).simulation.step_seconds
        return replace(best, seconds=seconds, memory=memory, recompute=recompute)

    def recomputed(self, graph: Graph, steps: Schedule) -> frozenset[Node]:
        """What is worth to be recomputed in a schedule of a graph: of one with blocks that stand
        for others, alike in all blocks."""
        blocks = blocks_of(graph) if self.deep else None
        return worth_recomputing(steps, () if blocks is None else blocks.crossing(steps))

    def memory(
        self, steps: Schedule, cost: CostModel, recomputed: frozenset[Node], often: Repeated
    ) -> int:
        return self.phases.timed(
            "memory", lambda: peak_memory(steps, cost.training, recomputed, often).total
        )
