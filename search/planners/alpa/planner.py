"""Alpa: the plan with the least latency over stages, sub-meshes and strategies within each.

Problem: a model's operators are to be cut into stages for sub-meshes of the devices, and each
operator by a strategy within its stage.

Method: two levels (Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for
Distributed Deep Learning, OSDI 2022). Operators are clustered into layers (section 5.2,
``layers``). For each stage of layers and each sub-mesh an integer program chooses strategies
(section 4, ``intra`` and ``ilp``). Dynamic programming chooses the stages (section 5.1 and 5.2,
``stages``). A stage does no more than ``1 + TOLERANCE`` times its share of the operations, as the
authors' own suites ask for. Numbers of micro-batches are the user's there; here those of a ladder
are tried for each sub-mesh, until more pay no more. The best ``FINALISTS`` are built, simulated and
counted, as the authors measure theirs.

Deviations: all stages have sub-meshes of one shape; a stage of one micro-batch, on all devices, has
the whole batch at once; recomputation is that of Unity's pipelines. As in the paper, what passes
between stages counts nothing in the choice, but does in the price.

Complexity: an integer program for each different stage, of which there are at most the sub-meshes
times the square of the layers for each number of micro-batches. What it finds is the best of its
own sums, within the solver's gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import inf
from time import perf_counter

from pcg.errors import NegativeAnswer
from pcg.graph.graph import Graph
from pcg.plan.pipeline import PipelineFile
from pcg.plan.plan import Plan
from search.choices import Recompute
from search.cost.planned import Planned, SearchReport, Stop
from search.cost.progress import Phases
from search.map.rules.cuts import Cuts
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import PLAIN, Sparing, micro_batch_counts, stage_counts
from search.pipeline.streams import Streams, streams
from search.pipeline.tries import PLAINLY, SPARING, ladder
from search.plan.finish import does_not_fit, finished
from search.planners.alpa.build import BuiltStages, built
from search.planners.alpa.intra import StageChoice, StageChoices, Tally, whole_mesh
from search.planners.alpa.layers import layers, operations
from search.planners.alpa.stages import best_stages
from search.planners.common import PlannerSetting, PricedChoice, planned_choice, priced_choice

LAYERS = 8
"""Layers that a model is clustered into, as in the authors' suites; more where there are more
stages."""
TOLERANCE = 1.0
"""By what part a stage may do more than its share of the operations."""
ROOM = 0.85
"""Of a device's memory, the part that weights and what is kept may fill; the rest is for what is
there at the fullest time alone, which does not add up over operators."""
FINALISTS = 3
"""Pipelines that are built once one of them fits."""
MOST_BUILT = 8
"""Pipelines that are built at most."""


@dataclass(frozen=True)
class AlpaPipeline:
    """A pipeline that the dynamic programming found. ``bounds``: of its stages, in the order of the
    operators; ``seconds`` of a step, as it estimates them."""

    batches: MicroBatches
    bounds: tuple[int, ...]
    choices: tuple[StageChoice, ...]
    seconds: float
    sparing: Sparing

    @property
    def stages(self) -> int:
        return len(self.choices)

    @property
    def content(self) -> object:
        """What is built of it, whatever it is estimated to recompute."""
        size, places = self.batches.cost.machine.devices, tuple(one.places for one in self.choices)
        return size, self.batches.slices, self.bounds, places


@dataclass(frozen=True)
class AlpaFound:
    """What the search came to. One of both is there at least."""

    pipelines: Sequence[tuple[AlpaPipeline, BuiltStages]]
    """Those that were built, and what they take."""
    whole: PricedChoice | None
    """The best plan without a pipeline."""
    tally: Tally
    report: SearchReport


@dataclass(frozen=True)
class AlpaPlanner:
    """Plans as Alpa does. ``micro_batches``: their numbers that are tried, by default those of a
    ladder; ``seconds`` that the search may take."""

    setting: PlannerSetting
    layers: int = LAYERS
    micro_batches: tuple[int, ...] | None = None
    seconds: float = 600.0

    def plan(self, name: str, graph: Graph) -> Planned:
        """The plan; raises NegativeAnswer where none fits."""
        start = perf_counter()
        found = self.found(graph)
        limit = self.setting.machine.memory_limit()
        fitting = [pair for pair in found.pipelines if pair[1].memory <= limit]
        best = min(fitting, key=lambda pair: pair[1].seconds, default=None)
        whole = found.whole
        least = inf if best is None else best[1].seconds
        if whole is not None and whole.over <= 0 and whole.seconds <= least:
            return planned_choice(self.setting, name, graph, whole, found.report, start)
        if best is None:
            over = [made.memory - limit for _, made in found.pipelines]
            over += [] if whole is None else [whole.over]
            raise does_not_fit(name, self.setting.machine, min(over), found.report.stop)
        plan = self.plan_of(name, graph, *best)
        return Planned(plan, found.report, perf_counter() - start)

    def plan_of(self, name: str, graph: Graph, pipeline: AlpaPipeline, made: BuiltStages) -> Plan:
        """The plan of a pipeline that was found for a graph."""
        return finished(
            name,
            graph,
            made.cut,
            made.steps,
            self.setting.cost(),
            self.setting.library.hash,
            seconds=made.seconds,
            memory=made.memory,
            recompute=made.recompute,
            pipeline=PipelineFile(
                stages=pipeline.stages,
                micro_batches=pipeline.batches.slices,
                schedule="1f1b",
                interleave=1,
            ),
        )

    def found(self, graph: Graph) -> AlpaFound:
        """The best pipelines, and the best plan without one. Raises NegativeAnswer where neither is
        to be had."""
        graph.check()
        machine = self.setting.machine
        if len(machine.kinds) > 1:
            problem = "has devices of several kinds, and sub-meshes are taken to be alike"
            raise NegativeAnswer(f"alpa: {machine.name} {problem}")
        tally, phases = Tally(), Phases(perf_counter() + self.seconds)
        whole = phases.timed("whole mesh", lambda: self._whole(graph, tally))
        phases.has_plan = whole is not None
        tried = _Tries(self, tally, phases)
        try:
            source = phases.timed("rules", lambda: streams(graph, self.setting.library))
        except NegativeAnswer:
            if whole is None:
                raise
            pipelines: list[tuple[AlpaPipeline, BuiltStages]] = []
        else:
            pipelines = self._built(tried.of(source), phases)
        if whole is None and not pipelines:
            raise NegativeAnswer(f"alpa: no pipeline fits {machine.name}, by its own estimates")
        stop: Stop = "time" if phases.is_over else "exhausted"
        simulated = len(pipelines) + (whole is not None)
        report = SearchReport(tally.solved, simulated, stop, phases.seconds)
        return AlpaFound(pipelines, whole, tally, report)

    def _whole(self, graph: Graph, tally: Tally) -> PricedChoice | None:
        """The best of the fastest strategies on all devices, and of those that fit as they are."""
        chooser = self.setting.chooser(graph)
        best: PricedChoice | None = None
        for limit in (None, ROOM * self.setting.machine.memory_limit()):
            choice = whole_mesh(graph, chooser, limit, tally)
            if choice is not None:
                made = priced_choice(self.setting, chooser, choice)
                if best is None or _rank(made) < _rank(best):
                    best = made
            if best is not None and best.over <= 0 and not best.judged.recompute:
                break
        return best

    def _built(
        self, ranked: Sequence[AlpaPipeline], phases: Phases
    ) -> list[tuple[AlpaPipeline, BuiltStages]]:
        """The first of some pipelines, as they would run, until some of them fit."""
        limit, made = self.setting.machine.memory_limit(), list[tuple[AlpaPipeline, BuiltStages]]()
        phases.has_plan = False
        for one in ranked[:MOST_BUILT]:
            fits = any(own.memory <= limit for _, own in made)
            if fits and (len(made) >= FINALISTS or phases.is_over):
                break
            places = [at for own in one.choices for at in own.places]
            given = self.setting, one.batches, places, one.bounds
            made.append((one, phases.timed("building", partial(built, *given))))
        return made


def _rank(made: PricedChoice) -> tuple[int, float]:
    return max(made.over, 0), made.seconds


@dataclass(frozen=True)
class _Tries:
    """Sub-meshes and numbers of micro-batches, and the best stages of each."""

    planner: AlpaPlanner
    tally: Tally
    phases: Phases

    def of(self, source: Streams) -> list[AlpaPipeline]:
        """The pipelines of a model, the fastest first."""
        setting = self.planner.setting
        flops = operations(source.graph)
        cuts = Cuts(setting.library.concrete(source.graph))
        counts = self.planner.micro_batches or tuple(ladder(micro_batch_counts(source.batch)))
        found: list[AlpaPipeline] = []
        for stages, size in stage_counts(setting.machine):
            if stages > len(source.graph.operators):
                break
            count = max(self.planner.layers, stages)
            bounds = layers(source.graph, flops, count)
            shares = [float(flops[a:b].sum()) for a, b in pairwise(bounds)]
            least = inf
            for slices in counts:
                if slices < stages or (found and self.phases.is_over):
                    continue
                noun = "stage" if stages == 1 else "stages"
                setting.teller.works_on(f"alpa: {stages} {noun} x {slices} micro-batches")
                batches = MicroBatches(source, setting.cost(size), cuts, slices)
                own = list(self._found(batches, stages, bounds, shares))
                found += own
                seconds = min((one.seconds for one in own), default=inf)
                if seconds > least:
                    break
                least = seconds
        different = {one.content: one for one in sorted(found, key=lambda one: -one.seconds)}
        return sorted(different.values(), key=lambda one: one.seconds)

    def _found(
        self, batches: MicroBatches, stages: int, bounds: Sequence[int], shares: Sequence[float]
    ) -> Iterator[AlpaPipeline]:
        """With what is kept as it is, and with results recomputed."""
        setting = self.planner.setting
        limit = ROOM * setting.machine.memory_limit()
        make = partial(StageChoices, batches, limit, self.tally)
        choices = self.phases.timed("prices", make)
        recompute = setting.recompute
        sparings = [PLAIN] if recompute in PLAINLY else []
        sparings += [] if recompute is Recompute.NONE else [SPARING[recompute]]
        for sparing in sparings:
            search = partial(self._best, choices, stages, bounds, shares, sparing)
            found = self.phases.timed("stages", search)
            if found is not None:
                yield found

    def _best(
        self,
        choices: StageChoices,
        stages: int,
        bounds: Sequence[int],
        shares: Sequence[float],
        sparing: Sparing,
    ) -> AlpaPipeline | None:
        slices = choices.batches.slices
        most = sum(shares) / stages * (1 + TOLERANCE)

        def choice(first: int, last: int, after: int) -> StageChoice | None:
            in_flight = min(after + 1, slices)
            return choices.best(bounds[first], bounds[last], in_flight, sparing)

        def seconds_of(first: int, last: int, after: int) -> float:
            if last - first > 1 and sum(shares[first:last]) > most:
                return inf
            made = choice(first, last, after)
            return inf if made is None else made.seconds(sparing, slices)

        found = best_stages(len(shares), stages, slices, seconds_of)
        if found is None:
            return None
        seconds, ends = found
        made = [choice(a, b, stages - 1 - i) for i, (a, b) in enumerate(pairwise(ends))]
        own = tuple(one for one in made if one is not None)
        cut = tuple(bounds[at] for at in ends)
        return AlpaPipeline(choices.batches, cut, own, seconds, sparing)
