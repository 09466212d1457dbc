"""The part that planners of stages share: plans on the whole machine, the numbers of stages and
micro-batches to try, and the building of pipelines.

A planner chooses strategies and stages by its own sums (``StageLevels``). All numbers of stages
that the machine allows are tried. Numbers of micro-batches are those of a ladder, tried until they
gain nothing. The best ``FINALISTS`` pipelines are built by the rules, simulated, and their memory
counted, with recomputation if they would not fit. The fastest that fits is the plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Protocol

from pcg.collection import seldom_collected
from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from pcg.plan.pipeline import PipelineFile
from pcg.plan.plan import Plan
from search.cost.planned import NoPlanInTime, Planned, SearchReport, Stop
from search.cost.progress import OutOfTime, Phases, now
from search.map.choose.choosing import Choice
from search.map.rules.cuts import Cuts
from search.pipeline.built.pricer import BuiltPipeline, PipelinePricer, fastest
from search.pipeline.crossing import Crossings
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import Outline, micro_batch_counts, stage_counts
from search.pipeline.streams import Streams, streams
from search.pipeline.tries import ladder
from search.plan.finish import does_not_fit, finished
from search.planners.common import PlannerSetting, PricedChoice, planned_choice, priced_choice
from search.planners.ilp import Tally
from search.planners.row_prices import RowPrices

FINALISTS = 3
"""The number of pipelines that are built once one of them fits."""
MOST_BUILT = 8
"""The most pipelines that are built."""
CHOOSING = 2 / 3
"""The largest fraction of the time that is spent on choosing."""


class StageLevels(Protocol):
    """The choices of a planner."""

    def whole(self, prices: RowPrices) -> Iterator[Sequence[int]]:
        """Strategies of all operators of a graph on all devices, as places. The fastest come first,
        then, as long as the caller asks, strategies that take less memory."""
        ...

    def pipelines(self, batches: MicroBatches, prices: RowPrices, stages: int) -> Iterator[Outline]:
        """The best pipelines with ``stages`` stages, by the planner's own sums."""
        ...


@dataclass(frozen=True)
class StagedResult:
    """The result of a search. It has pipelines, or a plan without one, or both."""

    pipelines: Sequence[BuiltPipeline]
    """The pipelines that were built."""
    whole: PricedChoice | None
    """The best plan without a pipeline."""
    report: SearchReport
    refused: str | None = None
    """The reason why the model has no pipelines, or None."""


class StagedPlanner(ABC):
    """A planner that searches by levels."""

    @abstractmethod
    def search(self, tally: Tally) -> StagedSearch:
        """The search. ``tally`` counts its integer programs."""

    @seldom_collected()
    def plan(self, name: str, graph: Graph) -> Planned:
        """Return the plan. Raises NegativeAnswer if none fits."""
        start, tally = now(), Tally()
        search = self.search(tally)
        tried = search.found(name, graph)
        return search.planned(name, graph, tried, start, (tally.line,))


@dataclass(frozen=True)
class StagedSearch:
    """A search by the levels of a planner. ``micro_batches``: the numbers to try, by default those
    of a ladder; ``seconds``: the time limit."""

    setting: PlannerSetting
    name: str
    """The name of the planner."""
    levels: StageLevels
    micro_batches: tuple[int, ...] | None = None
    seconds: float = 600.0

    def planned(
        self, name: str, graph: Graph, tried: StagedResult, start: float, notes: tuple[str, ...]
    ) -> Planned:
        """The plan of a search's result. Raises NegativeAnswer if nothing fits."""
        notes = notes if tried.refused is None else (*notes, f"no pipelines: {tried.refused}")
        best = fastest(tried.pipelines)
        whole, least = tried.whole, inf if best is None else best.seconds
        if whole is not None and whole.over <= 0 and whole.seconds <= least:
            planned = planned_choice(self.setting, name, graph, whole, tried.report, start)
            return replace(planned, notes=notes)
        if best is None:
            over = [made.excess for made in tried.pipelines]
            over += [] if whole is None else [whole.over]
            raise does_not_fit(name, self.setting.machine, min(over), tried.report.stop)
        plan = self.plan_of(name, graph, best)
        return Planned(plan, tried.report, now() - start, notes=notes)

    def plan_of(self, name: str, graph: Graph, made: BuiltPipeline) -> Plan:
        """The plan of a pipeline of a graph."""
        return finished(
            name,
            graph,
            self._pricer(Phases()).derived(made),
            made.steps,
            self.setting.cost(),
            self.setting.library.hash,
            seconds=made.seconds,
            memory=made.memory,
            recompute=made.recompute,
            pipeline=PipelineFile(
                stages=made.outline.stages,
                micro_batches=made.outline.batches.slices,
                schedule="1f1b",
                interleave=1,
            ),
        )

    def found(self, name: str, graph: Graph) -> StagedResult:
        """Search for the best pipelines, and the best plan without one. Raises NegativeAnswer if
        there is neither."""
        graph.check()
        machine = self.setting.machine
        if len(machine.kinds) > 1:
            problem = "has devices of several kinds, expected one kind for equal groups of devices"
            raise NegativeAnswer(f"{self.name}: {machine.name} {problem}")
        phases = Phases.of(now(), self.seconds, len(graph.operators), self.setting.teller)
        wholes, built, tried = list[PricedChoice](), list[BuiltPipeline](), list[Outline]()
        stop: Stop = "exhausted"
        refused: str | None = None
        try:
            with phases.under_way():
                self._try_wholes(graph, phases, wholes)
                stop = self._try_pipelines(graph, phases, tried, built)
        except OutOfTime:
            stop = "time"
        except NegativeAnswer as why:
            if not wholes:
                raise
            refused = str(why)
        except KeyboardInterrupt:
            if not (wholes or built):
                raise
            stop = "interrupted"
        if not (wholes or built):
            if stop == "time":
                raise NoPlanInTime(name, self.seconds)
            raise NegativeAnswer(f"{self.name}: nothing fits {machine.name}, by its own estimates")
        strategies = sum(one.batches.strategies() for one in tried)
        strategies += sum(one.judged.strategies for one in wholes)
        report = SearchReport(strategies, len(wholes) + len(built), stop, phases.seconds)
        return StagedResult(built, min(wholes, key=_rank, default=None), report, refused)

    def _try_wholes(self, graph: Graph, phases: Phases, wholes: list[PricedChoice]) -> None:
        """Collect plans without a pipeline in ``wholes`` as they are found."""
        self.setting.teller.works_on(f"{self.name}: all devices", "map")
        for made in self._wholes(graph, phases):
            wholes.append(made)
            phases.has_plan = True

    def _try_pipelines(
        self, graph: Graph, phases: Phases, tried: list[Outline], built: list[BuiltPipeline]
    ) -> Stop:
        """Choose and build pipelines. Returns why it ended. Raises NegativeAnswer if the model has
        no pipelines."""
        source = phases.timed("rules", lambda: streams(graph, self.setting.library))
        choosing, stop = phases.part(CHOOSING), "exhausted"
        try:
            with choosing.under_way():
                self._choose(source, choosing, tried)
        except OutOfTime:
            stop = "time"
        own = {_content(one): one for one in sorted(tried, key=lambda one: -one.seconds)}
        self._build(sorted(own.values(), key=lambda one: one.seconds), phases, built)
        return stop

    def _wholes(self, graph: Graph, phases: Phases) -> Iterator[PricedChoice]:
        """Plans without a pipeline, until one fits without recomputation."""
        chooser = self.setting.chooser(graph)
        prices = phases.timed("prices", lambda: RowPrices.of_graph(graph, chooser))
        choices = self.levels.whole(prices)
        while (places := phases.timed("choosing", lambda: next(choices, None))) is not None:
            rows = zip(prices.nodes, prices.spaces, places, strict=True)
            choice = Choice(graph, {node: own.strategy(at) for node, own, at in rows}, 0.0)
            price = partial(priced_choice, self.setting, chooser, choice)
            made = phases.timed("simulating", price)
            yield made
            if made.over <= 0 and not made.judged.recompute:
                return

    def _choose(self, source: Streams, phases: Phases, tried: list[Outline]) -> None:
        """Choose pipelines of a model, for all numbers of stages."""
        setting = self.setting
        cuts = Cuts.of_rules(setting.library.concrete(source.graph))
        counts = self.micro_batches or tuple(ladder(micro_batch_counts(source.batch)))
        for stages, size in stage_counts(setting.machine):
            if stages > len(source.graph.operators):
                break
            least, cost = inf, setting.cost(size)
            for slices in (count for count in counts if count >= stages):
                noun = "stage" if stages == 1 else "stages"
                setting.teller.works_on(
                    f"{self.name}: {stages} {noun} x {slices} micro-batches", "pipeline"
                )
                batches = MicroBatches(source, cost, cuts, slices)
                make = partial(RowPrices.of_batches, batches)
                pipelines = self.levels.pipelines(batches, phases.timed("prices", make), stages)
                own: list[Outline] = []
                while one := phases.timed("choosing", lambda p=pipelines: next(p, None)):
                    own.append(one)
                tried += own
                batches.forget()
                seconds = min((one.seconds for one in own), default=inf)
                if seconds > least:
                    break
                least = seconds

    def _build(self, ranked: Sequence[Outline], phases: Phases, built: list[BuiltPipeline]) -> None:
        """Build pipelines in the order of their estimates, until enough are built and one fits."""
        pricer = self._pricer(phases)
        for one in ranked[:MOST_BUILT]:
            if len(built) >= FINALISTS and any(own.fits for own in built):
                break
            built.append(pricer.built(one))
            phases.has_plan = phases.has_plan or built[-1].fits

    def _pricer(self, phases: Phases) -> PipelinePricer:
        setting = self.setting
        return PipelinePricer(
            Crossings(setting.cost()), "1f1b", setting.recompute, phases, setting.teller
        )


def _rank(made: PricedChoice) -> tuple[int, float]:
    return max(made.over, 0), made.seconds


def _content(one: Outline) -> object:
    """A key of the pipeline that an outline builds, whatever its assumed recomputation."""
    size = one.batches.cost.machine.devices
    return size, one.batches.slices, one.bounds, one.chosen.strategies
