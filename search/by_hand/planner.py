"""The plan that given degrees of parallelism mean, priced like any other.

Within each group of devices, a graph is cut as ``search.plan.hand_cuts`` says. Between groups it is
cut at repeated blocks, with the same number of blocks in each chunk. Operators before the first
block go to the first chunk, those after the last block to the last chunk. Only the strategies that
the degrees leave open are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph, Node
from pcg.machine import Machine
from pcg.placement.schedule import Schedule
from pcg.plan.pipeline import PipelineFile
from pcg.plan.training import Training
from search.by_hand.degrees import HandDegrees
from search.by_hand.recomputed import recomputed
from search.cost.cost import SGD, CostModel
from search.cost.derivation import Derivation
from search.cost.efficiency import Speed
from search.cost.memory import peak_memory
from search.cost.planned import NoPlanInTime, Planned, SearchReport
from search.cost.progress import OutOfTime, Phases, Teller, now
from search.cost.simulate import recomputing
from search.map.building import Builder, Cut
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.map.space.axes import Mesh
from search.pipeline.built.build import PipelineParts
from search.pipeline.built.price import StageGroups, stage_bytes, stage_seconds
from search.pipeline.clock import step_seconds
from search.pipeline.crossing import Crossings
from search.pipeline.micro import MicroBatches
from search.pipeline.streams import streams
from search.plan.finish import does_not_fit, finished
from search.plan.hand_cuts import by_hand, opened_ends
from search.split.blocks import Blocks, blocks_of
from substitutions.rules.store import Library


@dataclass(frozen=True)
class HandPlan:
    """A plan by hand with its price: ``seconds`` of a step, ``memory`` bytes on the fullest
    device."""

    cut: Cut
    steps: Schedule
    recompute: frozenset[Node]
    seconds: float
    memory: int
    pipeline: PipelineFile | None


@dataclass
class HandPlanner:
    """Makes the plan that degrees of parallelism mean on a machine."""

    machine: Machine
    library: Library
    degrees: HandDegrees
    training: Training = SGD
    speed: Speed | None = None
    """The speed of devices; by default by the efficiency curves that come with Unity."""
    overlaps: bool = True
    """Whether communication overlaps with computation, as in this runtime. Not so in some
    others."""
    teller: Teller = field(default_factory=Teller)
    seconds: float = inf
    """The time limit for planning, in seconds."""

    def plan(self, name: str, graph: Graph) -> Planned:
        """Return the plan. Raises InputError for degrees that don't suit the model or the machine,
        and NegativeAnswer if the plan does not fit or is not ready in time."""
        start = now()
        try:
            with Phases(start + self.seconds).under_way():
                hand_plan = self.priced(graph)
        except OutOfTime:
            raise NoPlanInTime(name, self.seconds) from None
        over = hand_plan.memory - self.machine.memory_limit()
        if over > 0:
            raise does_not_fit(name, self.machine, over)
        self.teller.priced(hand_plan.seconds)
        plan = finished(
            name,
            graph,
            hand_plan.cut,
            hand_plan.steps,
            self._cost(self.machine),
            self.library.hash,
            seconds=hand_plan.seconds,
            memory=hand_plan.memory,
            recompute=hand_plan.recompute,
            pipeline=hand_plan.pipeline,
        )
        return Planned(plan, SearchReport(1, 1, "exhausted", {}), now() - start)

    def priced(self, graph: Graph) -> HandPlan:
        """Return the plan with its price, whether or not it fits in memory. Raises InputError for
        degrees that don't suit the model or the machine."""
        graph.check()
        degrees = self.degrees
        degrees.data(self.machine.devices)
        degrees.check_schedule()
        sliced = degrees.pipeline > 1 or degrees.micro_batches > 1
        return self._in_slices(graph) if sliced else self._at_once(graph)

    def _at_once(self, graph: Graph) -> HandPlan:
        """The plan that takes the whole batch at once, on all devices."""
        cost, before = self._cost(self.machine), Derivation.start(graph)
        if self.degrees.tensor > 1:
            graph, before = opened_ends(graph, self.library.concrete(graph))
        chooser = Chooser.on(cost, Cuts.of_rules(self.library.concrete(graph)))
        allowed = by_hand(
            graph,
            chooser.spaces.of,
            chooser.mesh,
            self.degrees.tensor,
            sequence=self.degrees.sequence,
        )
        choice = chooser.choose(graph, allowed=allowed)
        parts = self.degrees.data(self.machine.devices) if self.degrees.sharded else 1
        cut = Builder(chooser.spaces, parts).cut(choice, before)
        steps = cut.schedule()
        again = self._recomputed(graph, blocks_of(graph), list(cut.views))
        seconds = recomputing(steps, cost, again).simulation.step_seconds
        memory = peak_memory(steps, self.training, again).total
        return HandPlan(cut, steps, again, seconds, memory, None)

    def _in_slices(self, graph: Graph) -> HandPlan:
        """The plan that takes micro-batches through stages, or through all devices."""
        degrees, size = self.degrees, self.machine.devices // self.degrees.pipeline
        source = streams(graph, self.library)
        cuts = Cuts.of_rules(self.library.concrete(source.graph))
        cost = self._cost(self.machine.with_devices(size))
        batches = MicroBatches(source, cost, cuts, degrees.micro_batches)
        mesh = Mesh(cost.machine)
        batches.allowed = by_hand(
            source.graph, batches.spaces.of, mesh, degrees.tensor, sequence=degrees.sequence
        )
        blocks = blocks_of(source.graph)
        bounds = _bounds(source.graph, blocks, degrees.pipeline * degrees.interleave)
        parts = degrees.data(self.machine.devices) if degrees.sharded else 1
        whole = self._cost(self.machine)
        given = batches, batches.choose(), bounds, degrees.interleave, parts, Crossings(whole)
        cut = PipelineParts(*given).derived()
        steps = cut.schedule()
        again = self._recomputed(source.graph, blocks, list(cut.views))
        groups = StageGroups(degrees.pipeline, size, degrees.micro_batches, degrees.interleave)
        kind = degrees.schedule
        chunks = stage_seconds(steps, whole, groups, again, kind)
        pipeline = PipelineFile(
            stages=degrees.pipeline,
            micro_batches=degrees.micro_batches,
            schedule=kind,
            interleave=degrees.interleave,
        )
        return HandPlan(
            cut,
            steps,
            again,
            step_seconds(chunks, degrees.micro_batches, kind, degrees.interleave),
            max(stage_bytes(steps, whole, groups, kind, again)),
            pipeline,
        )

    def _recomputed(
        self, graph: Graph, blocks: Blocks | None, inner: Sequence[Node]
    ) -> frozenset[Node]:
        of = self.degrees
        return recomputed(
            of.recompute, graph, blocks, inner, sharded=of.sharded, sequence=of.sequence
        )

    def _cost(self, machine: Machine) -> CostModel:
        return CostModel(machine, self.training, self.speed, overlaps=self.overlaps)


def _bounds(graph: Graph, blocks: Blocks | None, chunks: int) -> tuple[int, ...]:
    """The places where chunks begin and end among the operators, with the same number of blocks in
    each chunk. Raises NegativeAnswer if the blocks don't divide so."""
    count = 0 if blocks is None else blocks.count
    if chunks == 1:
        return 0, len(graph.operators)
    if blocks is None or count % chunks:
        problem = f"{chunks} chunks, expected a divisor of the model's {count} repeated blocks"
        raise NegativeAnswer(f"by hand: {problem}")
    inner = (blocks.first + i * count // chunks * blocks.length for i in range(1, chunks))
    return (0, *inner, len(graph.operators))
