"""From a model to a pipeline: stages on groups of devices, micro-batches, and cuts within each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TypeVar

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph, Node
from pcg.machine import Machine
from pcg.placement.schedule import Schedule, schedule
from pcg.plan.pipeline import PipelineFile, ScheduleKind
from pcg.plan.plan import Plan
from pcg.plan.training import Training
from search.choices import IndexRole, Recompute
from search.cost.cost import SGD, CostModel
from search.cost.efficiency import Speed
from search.cost.planned import NoPlanInTime, Planned, SearchReport, Stop
from search.cost.progress import OutOfTime, Phases, Teller, check_time, now
from search.cost.units import forward_seconds, ways_to_fit
from search.map.rules.cuts import Cuts
from search.map.space.allow import along, everything
from search.pipeline.build import build, placed
from search.pipeline.clock import step_seconds
from search.pipeline.crossing import Crossings
from search.pipeline.micro import Chosen, MicroBatches
from search.pipeline.moves import FEW_DEVICES, BoundMoves
from search.pipeline.outline import (
    PLAIN,
    Outline,
    least_excess,
    micro_batch_counts,
    stage_counts,
)
from search.pipeline.price import StageGroups, chunks_on, stage_bytes, stage_seconds
from search.pipeline.stage_batches import StageBatches, by_kind, group_costs
from search.pipeline.streams import Streams, streams
from search.pipeline.tries import FEW_OPERATORS, PLAINLY, Tries
from search.plan.finish import finished
from search.split.colours import MOST_FREE
from substitutions.rules.store import Library

T = TypeVar("T")

PIPELINES: Mapping[str, ScheduleKind] = {"pipeline": "1f1b", "pipeline-2bw": "2bw"}
"""The planners of this module by name."""
FINALISTS = 3
"""How many of the outlines that look best are built and priced as they would run."""
OUTLINING = 2 / 3
"""Of the time, what goes to outlines at most, where there are any."""
FAR = 1.2
"""Of a deep model, what is estimated to take so many times as long as a pipeline that is built and
fits is not built: that takes long, and estimates are nearer than that."""
FAR_BUILT = 1.5
"""Of a small model, what is built and takes so many times as long as the best is not improved."""
MOST_BUILT = 8
"""How many are built at most until one fits, of those that recompute and of the others."""
MOST_AGAIN = 3
"""So often outlines are made again with less memory."""


@dataclass(frozen=True)
class Built:
    """A pipeline with its price: ``seconds`` of a step, ``memory`` bytes on the fullest device, and
    by how many bytes the device that misses its limit by most does so; what fits has no more than
    0."""

    outline: Outline
    steps: Schedule
    seconds: float
    memory: int
    excess: int
    recompute: frozenset[Node] = frozenset()
    kind: ScheduleKind = "1f1b"


@dataclass
class PipelinePlanner:
    """Plans pipelines on one machine; the one with the greatest throughput that fits its memory.

    One stage is a pipeline too: its micro-batches take less memory, and their gradients add up.
    ``kind`` is how weights are updated: ``1f1b`` computes what the model does, interleaved or by
    ZB-H1 where that is faster; ``2bw`` lets gradients be of weights one update old. Raises
    NegativeAnswer for a model whose batch cannot be taken in slices, and where nothing fits.
    """

    machine: Machine
    library: Library
    kind: ScheduleKind = "1f1b"
    seconds: float = 600.0
    training: Training = SGD
    speed: Speed | None = None
    """How fast devices are; by default as the curves that come with Unity say."""
    faster_than: float = inf
    """Seconds of a step: what is not expected to take less is left out."""
    teller: Teller = field(default_factory=Teller)
    dimensions: frozenset[IndexRole] | None = None
    """What the operators of micro-batches may be cut along; anything by default."""
    recompute: Recompute = Recompute.AUTO
    """What may be recomputed in the backward pass of a micro-batch."""
    _phases: Phases = field(init=False, default_factory=Phases)

    def plan(self, name: str, graph: Graph) -> Planned:
        """The plan; raises NegativeAnswer where there is none."""
        start = now()
        graph.check()
        self._phases = Phases.of(start, self.seconds, len(graph.operators), self.teller)
        # Another plan is known where pipelines have to be faster than it.
        self._phases.has_plan = self.faster_than < inf
        tried: list[Outline] = []
        built: list[Built] = []
        try:
            with self._phases.under_way():
                stop = self._searched(name, graph, tried, built)
        except OutOfTime:
            raise NoPlanInTime(name, self.seconds) from None
        strategies = sum(o.batches.strategies() for o in tried)
        report = SearchReport(strategies, len(built), stop, self._phases.seconds)
        plan = self._finished(name, graph, self._best(name, built))
        return Planned(plan, report, now() - start)

    def _searched(self, name: str, graph: Graph, tried: list[Outline], built: list[Built]) -> Stop:
        """Outline pipelines and build the best: why that ended. Raises OutOfTime where none is
        built by then, and NegativeAnswer where there is none."""
        source = self._phases.timed("rules", lambda: streams(graph, self.library))
        cuts = self._phases.timed("rules", lambda: Cuts(self.library.concrete(source.graph)))
        outlining = self._phases.part(OUTLINING)
        with outlining.under_way():
            outlines = self._outlines(source, cuts, outlining)
            first = _taken(outlines, tried, lambda: bool(tried))
        if not tried:
            if first == "time":
                raise OutOfTime
            raise NegativeAnswer(self._why_none(name, source, cuts))
        finalists = self._finalists(sorted(tried, key=lambda o: o.seconds))
        then = _taken(finalists, built, lambda: any(map(self._fits, built)))
        if not built:
            raise OutOfTime
        is_small = self.machine.devices <= FEW_DEVICES
        if then == "exhausted" and is_small and len(source.graph.operators) <= FEW_OPERATORS:
            self._with_less_memory(source, cuts, built)
            then = self._improved(built)
        late = {"interrupted": 2, "time": 1, "exhausted": 0}
        return max(first, then, key=lambda stop: late[stop])

    def _with_less_memory(self, source: Streams, cuts: Cuts, built: list[Built]) -> None:
        """Outline again as if there were less memory, where what was to be faster than all that
        fits took more than was estimated, and build the best of that too."""
        limit, share = self.machine.memory_limit(), 1.0
        for _ in range(MOST_AGAIN):
            fitting = min((one.seconds for one in built if self._fits(one)), default=inf)
            over = [one for one in built if not self._fits(one) and one.seconds < fitting]
            if not over:
                return
            share *= limit / (limit + min(over, key=lambda one: one.seconds).excess)
            outlines = self._outlines(source, cuts, self._phases, share)
            known = {one.outline.way for one in built}
            ranked = sorted(outlines, key=lambda one: one.seconds)
            built += self._finalists([one for one in ranked if one.way not in known])

    def _outlines(
        self, source: Streams, cuts: Cuts, phases: Phases, share: float = 1.0
    ) -> Iterator[Outline]:
        """Those that are estimated to fit in a part of a device's memory, by default in all."""
        wanted = self.dimensions
        allowed = everything if wanted is None else along(source.graph, wanted)
        return iter(
            Tries(
                source,
                cuts,
                self.machine,
                self.kind,
                self._cost,
                allowed,
                self.faster_than,
                phases,
                self.teller,
                self.recompute,
                share,
            )
        )

    def _why_none(self, name: str, source: Streams, cuts: Cuts) -> str:
        """Why there is no outline."""
        counts = micro_batch_counts(source.batch)
        if self.faster_than < inf:
            return f"{name} has no pipeline that takes less than {self.faster_than:.3g} s a step"
        least, most = inf, min(counts[-1], len(source.graph.operators))
        for stages, _ in stage_counts(self.machine):
            if stages <= most:
                costs = group_costs(self.machine, stages, self._cost)
                each = by_kind(costs, lambda c: MicroBatches(source, c, cuts, counts[-1]))
                least = min(least, least_excess(StageBatches(self.machine, each), self.kind))
        return self._misses(name, least)

    def _misses(self, name: str, excess: float) -> str:
        """``excess``: bytes by which the pipeline that comes nearest misses what a device has."""
        problem = f"{name} has no pipeline that fits {self.machine.name}: the one that takes"
        return f"{problem} least memory misses by {excess / 1e9:.2f} GB a device"

    def _finalists(self, ranked: list[Outline]) -> Iterator[Built]:
        cost = self._cost(self.machine)
        best, number = inf, Counter[bool]()
        for one in ranked:
            if best < inf and number.total() >= FINALISTS:
                break
            # What is recomputed may take hardly any time.
            least = one.seconds / one.sparing.time
            if len(one.batches.nodes) > MOST_FREE and least > FAR * best:
                continue
            # What recomputation saves is guessed: plans that need none get their turn too.
            spares = one.sparing != PLAIN
            if number[spares] == MOST_BUILT:
                continue
            number[spares] += 1
            built = self._built(one, cost)
            if self._fits(built):
                best, self._phases.has_plan = min(best, built.seconds), True
            yield built

    def _improved(self, built: list[Built]) -> Stop:
        """Look for better pipelines around those that are nearly as fast as the best that fits, and
        add what is built: why that ended."""
        cost = self._cost(self.machine)

        def price(one: Outline) -> float:
            check_time()
            kind = "zb-h1" if self._may_put_off(one) else self.kind
            built.append(self._built(replace(one, kind=kind), cost))
            return built[-1].seconds if self._fits(built[-1]) else inf

        # Of chunks, memory is counted once they are built.
        moves = BoundMoves(price, more_chunks=self.kind == "1f1b")
        fitting = min((one.seconds for one in built if self._fits(one)), default=inf)
        most = FAR_BUILT * min(self.faster_than, fitting)
        # What does not fit may do so once its stages have moved, or in more chunks.
        near = sorted((one for one in built if one.seconds <= most), key=lambda one: one.seconds)
        return _taken((moves.improve(one.outline) for one in near), [], lambda: True)

    def _may_put_off(self, one: Outline) -> bool:
        """Whether a pipeline may have a pass for weights."""
        is_plain = one.sparing == PLAIN and one.interleave == 1
        return self.kind == "1f1b" and is_plain and one.stages > 1

    def _best(self, name: str, built: Sequence[Built]) -> Built:
        fitting = [b for b in built if self._fits(b)]
        if not fitting:
            raise NegativeAnswer(self._misses(name, min(b.excess for b in built)))
        return min(fitting, key=lambda b: b.seconds)

    def _fits(self, built: Built) -> bool:
        return built.excess <= 0

    def _built(self, outline: Outline, cost: CostModel) -> Built:
        own = outline.groups
        groups = StageGroups(own.stages, own.size, own.slices, outline.interleave)
        given = _given(outline, cost)
        made = self._phases.timed("building", lambda: placed(*given))
        steps = self._phases.timed("scheduling", lambda: schedule(made.graph, made.views))
        # A pass for weights may take more memory than 1F1B, or no less time.
        kinds = dict.fromkeys((outline.kind, self.kind))
        ways = [self._priced(outline, steps, groups, cost, kind) for kind in kinds]
        best = min(ways, key=lambda one: (self._over(one), one.seconds))
        self.teller.priced(best.seconds if self._fits(best) else inf)
        return best

    def _priced(
        self,
        outline: Outline,
        steps: Schedule,
        groups: StageGroups,
        cost: CostModel,
        kind: ScheduleKind,
    ) -> Built:
        """A pipeline that is built, recomputing where it has to; the fastest way that fits."""
        slices, chunks = groups.micro_batches, groups.interleave

        def priced(nodes: frozenset[Node]) -> Built:
            run = partial(stage_seconds, steps, cost, groups, nodes, kind)
            seconds = step_seconds(self._phases.timed("simulating", run), slices, kind, chunks)
            held = stage_bytes(steps, cost, groups, kind, nodes)
            return Built(outline, steps, seconds, max(held), excess(held), nodes, kind)

        def excess(held: Sequence[int]) -> int:
            return max(own - limit for own, limit in zip(held, limits, strict=True))

        def counted(nodes: frozenset[Node]) -> int:
            return excess(stage_bytes(steps, cost, groups, kind, nodes))

        limits = [own.cost.machine.memory_limit() for own in outline.groups.each]
        built = [priced(frozenset())] if self.recompute in PLAINLY else []
        if self.recompute is not Recompute.NONE and not any(map(self._fits, built)):
            seconds = forward_seconds(steps, cost, slices)
            own = chunks_on(steps, groups)
            within = groups.size, own.numbers if own else {}
            ways = ways_to_fit(steps, seconds, counted, 0, self.recompute, *within)
            built += [priced(nodes) for nodes in ways]
        every = built or [priced(frozenset())]
        return min(every, key=lambda one: (self._over(one), one.seconds))

    def _over(self, built: Built) -> int:
        """Bytes by which it misses the memory of a device."""
        return max(built.excess, 0)

    def _cost(self, machine: Machine) -> CostModel:
        return CostModel(machine, self.training, self.speed)

    def _finished(self, name: str, graph: Graph, best: Built) -> Plan:
        pipeline = PipelineFile(
            stages=best.outline.stages,
            micro_batches=best.outline.batches.slices,
            schedule=best.kind,
            interleave=best.outline.interleave,
        )
        cost = self._cost(self.machine)
        return finished(
            name,
            graph,
            build(*_given(best.outline, cost)),
            best.steps,
            cost,
            self.library.hash,
            seconds=best.seconds,
            memory=best.memory,
            recompute=best.recompute,
            pipeline=pipeline,
        )


def _given(
    one: Outline, cost: CostModel
) -> tuple[MicroBatches, Chosen, tuple[int, ...], int, int, Crossings]:
    """What a pipeline is built of; ``cost`` is of the whole machine."""
    parts, crossings = one.sparing.parts, Crossings(cost)
    return one.batches, one.chosen, one.bounds, one.interleave, parts, crossings


def _taken(results: Iterator[T], known: list[T], is_enough: Callable[[], bool]) -> Stop:
    """Take what is found, until there is no more, time is up, or somebody interrupts: which it was.
    Raises KeyboardInterrupt where what is known by then is not enough."""
    try:
        for one in results:
            known.append(one)  # what was found stays where this is interrupted
    except OutOfTime:
        return "time"
    except KeyboardInterrupt:
        if not is_enough():
            raise
        return "interrupted"
    return "exhausted"
