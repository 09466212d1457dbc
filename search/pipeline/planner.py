"""From a model to a pipeline: stages on groups of devices, micro-batches, and cuts within
stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from pcg.collection import uncollected
from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from pcg.machine import Machine
from pcg.plan.pipeline import PipelineFile, ScheduleKind
from pcg.plan.plan import Plan
from pcg.plan.training import Training
from search.choices import IndexRole, Recompute
from search.cost.cost import SGD, CostModel
from search.cost.efficiency import Speed
from search.cost.planned import NoPlanInTime, Planned, SearchReport, Stop
from search.cost.progress import OutOfTime, Phases, Teller, now
from search.map.rules.cuts import Cuts
from search.map.space.allow import by_roles, everything
from search.pipeline.built.moves import FEW_DEVICES
from search.pipeline.built.pricer import BuiltPipeline, PipelinePricer, fastest
from search.pipeline.crossing import Crossings
from search.pipeline.improving import PipelineImprover
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import (
    Outline,
    least_excess,
    micro_batch_counts,
    stage_counts,
)
from search.pipeline.stage_batches import StageBatches, by_kind, group_costs
from search.pipeline.stage_memory import PLAIN, Sparing
from search.pipeline.streams import Streams, streams
from search.pipeline.tries import FEW_OPERATORS, OutlineSearch
from search.plan.finish import finished
from search.split.blocks import folded
from search.split.colours import MOST_FREE
from substitutions.rules.store import Library

T = TypeVar("T")

PIPELINES: Mapping[str, ScheduleKind] = {"pipeline": "1f1b", "pipeline-2bw": "2bw"}
"""The planners of this module, by name."""
FINALISTS = 3
"""The number of outlines with the best estimates that are built and priced."""
OUTLINING = 2 / 3
"""The largest fraction of the time that is spent on outlines, if there are any."""
FAR = 1.2
"""For a deep model, a pipeline is not built if its estimate is this many times the time of one that
was built and fits: building takes long, and estimates are better than that."""
NEAR = 1.5
"""For other models, a pipeline is built even if its estimate is up to this many times the time that
it has to beat. Estimates know of no pass for weights, nor of improvements."""
MOST_BUILT = 8
"""The most pipelines that are built until one fits, separately with and without recomputation."""
TIGHT = 0.5
"""Memory is short if a pipeline that is built takes more than this fraction of it."""
MORE = 1.5
"""The factor on the memory for outlines of small models that may fit once they are built."""
MOST_AGAIN = 3
"""The most times that outlines are made again with less memory."""


@dataclass
class PipelinePlanner:
    """Plans pipelines on one machine, and returns the fastest that fits in memory.

    A pipeline may have one stage: its micro-batches take less memory, and their gradients add up.
    ``kind``: ``1f1b`` computes what the model computes, interleaved or by ZB-H1 if that is faster;
    ``2bw`` uses gradients for weights that are one update old. Raises NegativeAnswer if the model's
    batch cannot be taken in slices, or if no pipeline fits.
    """

    machine: Machine
    library: Library
    kind: ScheduleKind = "1f1b"
    seconds: float = 600.0
    training: Training = SGD
    speed: Speed | None = None
    """The speed of devices; by default by the efficiency curves that come with Unity."""
    faster_than: float = inf
    """Seconds of a step: slower pipelines, by estimate, are left out."""
    teller: Teller = field(default_factory=Teller)
    dimensions: frozenset[IndexRole] | None = None
    """The roles of indices along which operators may be cut; any by default."""
    recompute: Recompute = Recompute.AUTO
    """Which tensors may be recomputed in the backward pass of a micro-batch."""
    brief: bool = False
    """Whether pipelines are improved only if one is faster than ``faster_than`` before."""
    _phases: Phases = field(init=False, default_factory=Phases)
    _crossings: Crossings = field(init=False)

    def __post_init__(self) -> None:
        self._crossings = Crossings(self._cost(self.machine))

    def plan(self, name: str, graph: Graph) -> Planned:
        """Return the plan. Raises NegativeAnswer if there is none."""
        start = now()
        graph.check()
        self._phases = Phases.of(start, self.seconds, len(graph.operators), self.teller)
        # If there is a limit, another planner has a plan already.
        self._phases.has_plan = self.faster_than < inf
        tried: list[Outline] = []
        built: list[BuiltPipeline] = []
        try:
            with self._phases.under_way():
                stop = self._searched(name, graph, tried, built)
        except OutOfTime:
            raise NoPlanInTime(name, self.seconds) from None
        strategies = sum(o.batches.strategies() for o in tried)
        report = SearchReport(strategies, len(built), stop, self._phases.seconds)
        best = self._best(name, built)
        plan = self._phases.completed(lambda: self._finished(name, graph, best))
        return Planned(plan, report, now() - start)

    def _searched(
        self, name: str, graph: Graph, tried: list[Outline], built: list[BuiltPipeline]
    ) -> Stop:
        """Outline pipelines and build the best. Returns why it ended. Raises OutOfTime or
        KeyboardInterrupt if it ends before one is built, NegativeAnswer without an outline."""
        source = self._phases.timed("rules", lambda: streams(graph, self.library))
        rules = self._phases.timed("rules", lambda: self.library.concrete(source.graph))
        cuts = self._phases.timed("rules", lambda: Cuts.of_rules(rules))
        outlining = self._phases.part(OUTLINING)
        with outlining.under_way():
            outlines = self._outlines(source, cuts, outlining)
            first = _collected(outlines, tried, lambda: bool(tried))
        if not tried:
            if first == "time":
                raise OutOfTime
            raise NegativeAnswer(self._why_none(name, source, cuts))
        if first == "interrupted":
            self._phases.end_soon()
        finalists = self._finalists(_ranked(tried))
        then = _collected(finalists, built, lambda: any(one.fits for one in built))
        if not built:
            raise KeyboardInterrupt if first == "interrupted" else OutOfTime
        is_faster = any(one.fits and one.seconds < self.faster_than for one in built)
        is_brief = self.brief and not is_faster
        is_small = self.machine.devices <= FEW_DEVICES and not is_brief
        if then == "exhausted" and is_small and len(source.graph.operators) <= FEW_OPERATORS:
            self._with_more_memory(source, cuts, built)
            self._with_less_memory(source, cuts, built)
        if then == "exhausted":
            improver = PipelineImprover(self._pricer, self.faster_than, built, is_brief)
            then = _ended(improver.improve, lambda: True)
        late = {"interrupted": 2, "time": 1, "exhausted": 0}
        return max(first, then, key=lambda stop: late[stop])

    def _with_more_memory(self, source: Streams, cuts: Cuts, built: list[BuiltPipeline]) -> None:
        """Outline and build again as if there were more memory, if memory is short: what is
        estimated not to fit may do so once it is built."""
        limit = self.machine.memory_limit()
        if any(pipeline.excess > -(1 - TIGHT) * limit for pipeline in built):
            outlines = self._outlines(source, cuts, self._phases, MORE)
            built += self._finalists(self._new(outlines, built))

    def _new(self, outlines: Iterator[Outline], built: list[BuiltPipeline]) -> list[Outline]:
        """The outlines that have not been built, the fastest first."""
        known = {(pipeline.outline.key, pipeline.outline.chosen.strategies) for pipeline in built}
        ranked = sorted(outlines, key=lambda one: one.seconds)
        return [one for one in ranked if (one.key, one.chosen.strategies) not in known]

    def _with_less_memory(self, source: Streams, cuts: Cuts, built: list[BuiltPipeline]) -> None:
        """Outline and build again as if there were less memory, if a faster pipeline than all that
        fit took more memory than estimated."""
        limit, share = self.machine.memory_limit(), 1.0
        for _ in range(MOST_AGAIN):
            fitting = min((one.seconds for one in built if one.fits), default=inf)
            over = [one for one in built if not one.fits and one.seconds < fitting]
            if not over:
                return
            fastest = min(over, key=lambda pipeline: pipeline.seconds)
            share *= limit / (limit + fastest.excess)
            outlines = self._outlines(source, cuts, self._phases, share)
            built += self._finalists(self._new(outlines, built))

    def _outlines(
        self, source: Streams, cuts: Cuts, phases: Phases, share: float = 1.0
    ) -> Iterator[Outline]:
        """The outlines that are estimated to fit in a fraction of the memory of their devices."""
        wanted = self.dimensions
        allowed = everything if wanted is None else by_roles(source.graph, wanted)
        is_deep = len(source.graph.operators) > MOST_FREE
        return iter(
            OutlineSearch(
                source,
                cuts,
                self.machine,
                self.kind,
                self._cost,
                allowed,
                self.faster_than if is_deep else NEAR * self.faster_than,
                phases,
                self.teller,
                self.recompute,
                share,
            )
        )

    def _why_none(self, name: str, source: Streams, cuts: Cuts) -> str:
        """The reason why there is no outline."""
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
        """The message that no pipeline fits. ``excess``: the bytes by which a device of the one
        that takes least memory exceeds its own."""
        problem = f"{name} has no pipeline that fits {self.machine.name}: the one that takes"
        return f"{problem} least memory misses by {excess / 1e9:.2f} GB a device"

    def _finalists(self, ranked: list[Outline]) -> Iterator[BuiltPipeline]:
        """Build the first outline, and then those with the best estimates. An estimate is corrected
        once a pipeline of its sort was built, by what that took beside its own estimate."""
        pricer, waiting, ratios = self._pricer, list(ranked), dict[_Sort, float]()
        best, number = inf, Counter[bool]()

        def corrected(at: int) -> float:
            return waiting[at].seconds * ratios.get(_sort(waiting[at]), 1.0)

        while waiting and (best == inf or number.total() < FINALISTS):
            one = waiting.pop(min(range(len(waiting)), key=corrected) if ratios else 0)
            # Recomputation may take hardly any time in the end.
            least = one.seconds / one.sparing.time
            if len(one.batches.nodes) > MOST_FREE and least > FAR * best:
                continue
            # The effect of recomputation is a guess: pipelines without it get their turn too.
            spares = one.sparing != PLAIN
            if number[spares] == MOST_BUILT:
                continue
            number[spares] += 1
            built = pricer.built(one)
            ratios.setdefault(_sort(one), built.seconds / one.seconds)
            if built.fits:
                best, self._phases.has_plan = min(best, built.seconds), True
            yield built

    def _best(self, name: str, built: Sequence[BuiltPipeline]) -> BuiltPipeline:
        best = fastest(built)
        if best is None:
            raise NegativeAnswer(self._misses(name, min(b.excess for b in built)))
        return best

    @property
    def _pricer(self) -> PipelinePricer:
        given = self._crossings, self.kind, self.recompute
        return PipelinePricer(*given, self._phases, self.teller)

    def _cost(self, machine: Machine) -> CostModel:
        return CostModel(machine, self.training, self.speed)

    @uncollected()
    def _finished(self, name: str, graph: Graph, best: BuiltPipeline) -> Plan:
        pipeline = PipelineFile(
            stages=best.outline.stages,
            micro_batches=best.outline.batches.slices,
            schedule=best.kind,
            interleave=best.outline.interleave,
        )
        return finished(
            name,
            graph,
            self._pricer.derived(best),
            best.steps,
            self._cost(self.machine),
            self.library.hash,
            seconds=best.seconds,
            memory=best.memory,
            recompute=best.recompute,
            pipeline=pipeline,
            short=folded(graph),
        )


_Sort = tuple[int, bool, Sparing]
"""What the error of an estimate depends on most: the number of stages, whether they are by hand,
and the assumed recomputation."""


def _sort(one: Outline) -> _Sort:
    return one.stages, one.by_hand, one.sparing


def _ranked(outlines: Sequence[Outline]) -> list[Outline]:
    """The outlines in the order in which they are built: the fastest first, but before them the
    fastest of those by hand, whose estimate is the surest."""
    ranked = sorted(outlines, key=lambda one: one.seconds)
    first = next((one for one in ranked if one.by_hand), None)
    return ranked if first is None else [first, *(one for one in ranked if one is not first)]


def _collected(results: Iterator[T], known: list[T], is_enough: Callable[[], bool]) -> Stop:
    """Append results to ``known`` until there are no more, or as ``_ended`` says."""

    def collect() -> None:
        for one in results:
            known.append(one)  # results so far are kept if this is interrupted

    return _ended(collect, is_enough)


def _ended(work: Callable[[], None], is_enough: Callable[[], bool]) -> Stop:
    """Work until it is done, time is up, or the user interrupts. Returns which it was. Raises
    KeyboardInterrupt if the results so far are not enough."""
    try:
        work()
    except OutOfTime:
        return "time"
    except KeyboardInterrupt:
        if not is_enough():
            raise
        return "interrupted"
    return "exhausted"
