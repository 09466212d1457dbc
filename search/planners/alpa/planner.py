"""Alpa: the plan with the least latency over stages, sub-meshes and strategies within each.

Problem: cut a model's operators into stages for sub-meshes of the devices, and each operator by a
strategy within its stage.

Method: two levels (Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for
Distributed Deep Learning, OSDI 2022). Operators are clustered into layers (section 5.2,
``layers``). For each stage of layers and each sub-mesh, an integer program chooses strategies
(section 4, ``intra``). Dynamic programming chooses the stages (sections 5.1 and 5.2, ``stages``). A
stage does no more than ``1 + TOLERANCE`` times its share of the operations, as in the authors' own
suites. The most promising pipelines are built, simulated, and their memory counted, where the
authors measure (``search.planners.staged``).

Deviations: all stages have sub-meshes of one shape. A stage of one micro-batch on all devices takes
the whole batch at once. Recomputation is that of Unity's pipelines. As in the paper, tensors that
pass between stages do not count in the choice, but they do in the price.

Complexity: an integer program for each different stage. There are at most the sub-meshes times the
square of the layers of these, for each number of micro-batches. The result is optimal for its own
sums, within the solver's gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from pcg.graph.graph import Graph
from pcg.memo import Memo
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import Outline
from search.pipeline.stage_batches import alike
from search.pipeline.stage_memory import Sparing
from search.planners.alpa.intra import best_places
from search.planners.alpa.layers import layers
from search.planners.alpa.stages import best_stages
from search.planners.common import PlannerSetting
from search.planners.ilp import Tally
from search.planners.row_cuts import operations
from search.planners.row_prices import StageChoice
from search.planners.stage_choices import OPEN_GAP, SolvedLevels, StageChoices, StageProblem
from search.planners.staged import StagedPlanner, StagedSearch

LAYERS = 8
"""The number of layers of a model, as in the authors' suites; more if there are more stages."""
TOLERANCE = 1.0
"""The fraction by which a stage may exceed its share of the operations."""


@dataclass(frozen=True)
class AlpaPlanner(StagedPlanner):
    """Plans as Alpa does. ``micro_batches``: the numbers to try, by default those of a ladder;
    ``seconds``: the time limit of the search."""

    setting: PlannerSetting
    seconds: float = 600.0
    layers: int = LAYERS
    micro_batches: tuple[int, ...] | None = None

    def search(self, tally: Tally) -> StagedSearch:
        levels = _Levels(self.setting, tally, self.layers)
        return StagedSearch(self.setting, "alpa", levels, self.micro_batches, self.seconds)


@dataclass(frozen=True)
class _Layers:
    """A model's layers: their bounds among the operators, and the operations of each."""

    bounds: tuple[int, ...]
    shares: tuple[float, ...]

    @staticmethod
    def of(graph: Graph, count: int) -> _Layers:
        flops = operations(graph)
        bounds = layers(graph, flops, count)
        return _Layers(bounds, tuple(float(flops[a:b].sum()) for a, b in pairwise(bounds)))


@dataclass(frozen=True)
class _Levels(SolvedLevels):
    """Alpa's two levels."""

    layers: int
    _rows: Memo[tuple[int, int], _Layers] = field(
        init=False, default_factory=Memo[tuple[int, int], "_Layers"]
    )

    def places(self, stage: StageProblem) -> Sequence[int] | None:
        own = slice(stage.first, stage.last)
        given = stage.prices.spaces[own], stage.prices.colours[own], stage.factors, stage.held
        return best_places(*given, self.tally, OPEN_GAP)

    def outlined(
        self, batches: MicroBatches, choices: StageChoices, stages: int, sparing: Sparing
    ) -> Outline | None:
        graph, count = batches.streams.graph, max(self.layers, stages)
        row = self._rows.get((id(graph), count), lambda: _Layers.of(graph, count))
        slices, bounds, shares = batches.slices, row.bounds, row.shares
        most = sum(shares) / stages * (1 + TOLERANCE)

        def choice(first: int, last: int, after: int) -> StageChoice | None:
            in_flight = min(after + 1, slices)
            return choices.best(bounds[first], bounds[last], in_flight, sparing)

        def seconds_of(first: int, last: int, after: int) -> float:
            if last - first > 1 and sum(shares[first:last]) > most:
                return inf
            made = choice(first, last, after)
            return inf if made is None else made.seconds(sparing, slices)

        best = best_stages(len(shares), stages, slices, seconds_of)
        if best is None:
            return None
        seconds, ends = best
        made = [choice(a, b, stages - 1 - i) for i, (a, b) in enumerate(pairwise(ends))]
        places = [at for one in made if one is not None for at in one.places]
        cut = tuple(bounds[at] for at in ends)
        groups = alike(batches, self.setting.machine, stages)
        chosen = (batches.chosen(places),) * stages
        return Outline(groups, chosen, cut, seconds, sparing=sparing)
