"""TePDist: strategies of cones by an integer program, stages where least passes.

Problem: a model's operators are to be cut into stages, and each operator by a strategy.

Method: (Zhang et al., Auto-Parallelizing Large Models with Rhino: A Systematic Approach on
Production AI Platform, arXiv:2302.08141; the system was published as TePDist.) The row of operators
is cut into stages with balanced operations and the least bytes between them (``stages``). Each
stage is a segment: its operators are clustered into cones, whose strategies dynamic programming
finds by that of the root (``cones``), and an integer program chooses those of all roots
(``search.planners.ilp``). What promises most is built, simulated and counted
(``search.planners.staged``).

Complexity: an integer program for each stage, logical mesh and number of micro-batches. Exact for
the sums over cones, within the solver's gap.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from pcg.graph.graph import Graph
from pcg.machine import Machine
from pcg.memo import Memo
from search.choices import Recompute
from search.cost.planned import Planned
from search.cost.progress import check_time, now
from search.map.choose.factors import Factor, Places, restricted
from search.map.choose.tied import Tied
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import PLAIN, Outline, Sparing
from search.pipeline.stage_batches import alike
from search.pipeline.tries import PLAINLY, SPARING
from search.planners.common import PlannerSetting
from search.planners.ilp import HeldBytes, Solved, Tally, solve
from search.planners.row_prices import RowPrices, StageChoice, logical_masks
from search.planners.stage_choices import OPEN, StageChoices
from search.planners.staged import StagedSearch
from search.planners.tepdist.cones import Cones, cones, possible
from search.planners.tepdist.stages import stage_bounds

MOST_FREE = 60
"""Cones of a stage that are chosen one by one; of more, those that look alike are cut alike."""
SOLVER_SECONDS = 20.0
"""For one integer program, where its relaxation is not enough."""
ROOM = 0.85
"""Of a device's memory, the part that weights and what is kept may fill."""


@dataclass(frozen=True)
class TepdistPlanner:
    """Plans as TePDist does. ``micro_batches``: their numbers that are tried, by default those of a
    ladder; ``seconds`` that the search may take."""

    setting: PlannerSetting
    seconds: float = 600.0
    micro_batches: tuple[int, ...] | None = None

    def plan(self, name: str, graph: Graph) -> Planned:
        """The plan; raises NegativeAnswer where none fits."""
        start, tally = now(), Tally()
        search = self.search(tally)
        tried = search.found(name, graph)
        return search.planned(name, graph, tried, start, (tally.line,))

    def search(self, tally: Tally) -> StagedSearch:
        """The search, whose integer programs are counted."""
        levels = _ConeLevels(self.setting, tally)
        return StagedSearch(self.setting, "tepdist", levels, self.micro_batches, self.seconds)


@dataclass(frozen=True)
class _ConeLevels:
    """Stages first, then cones within each."""

    setting: PlannerSetting
    tally: Tally
    _bounds: Memo[tuple[int, int], tuple[int, ...]] = field(
        init=False, default_factory=Memo[tuple[int, int], tuple[int, ...]]
    )

    @property
    def _limit(self) -> float:
        return ROOM * self.setting.machine.memory_limit()

    def whole(self, prices: RowPrices) -> Iterator[Sequence[int]]:
        """The fastest strategies on all devices, and the fastest that fit as they are."""
        for limit in (inf, self._limit):
            choice = StageChoices(prices, limit, self._places).best(0, len(prices.nodes), 1)
            if choice is not None:
                yield choice.places

    def pipelines(self, batches: MicroBatches, prices: RowPrices, stages: int) -> Iterator[Outline]:
        """With what is kept as it is, and with results recomputed."""
        graph = batches.streams.graph
        bounds = self._bounds.get((id(graph), stages), lambda: stage_bounds(graph, stages))
        choices, recompute = StageChoices(prices, self._limit, self._places), self.setting.recompute
        sparings = [PLAIN] if recompute in PLAINLY else []
        sparings += [] if recompute is Recompute.NONE else [SPARING[recompute]]
        for sparing in sparings:
            check_time()
            outlined = _outlined(self.setting.machine, batches, choices, bounds, sparing)
            if outlined is not None:
                yield outlined

    def _places(
        self,
        prices: RowPrices,
        first: int,
        last: int,
        factors: Sequence[Factor],
        held: HeldBytes | None,
    ) -> Sequence[int] | None:
        """The places of the strategies of cones that together take least, on the best logical
        mesh."""
        spaces, looks = prices.spaces[first:last], prices.looks[first:last]
        roots = cones(prices.nodes[first:last])
        best: Solved | None = None
        places: list[int] | None = None
        least = inf
        for split in range(max(spaces[0].strategies.shape[1], 1)):
            masks = logical_masks(spaces, split)
            sizes = [len(mask) for mask in masks]
            made = Cones.made(roots, sizes, restricted(factors, masks))
            own = None if held is None else _within(held, masks)
            solution = solve_cones(made, looks, own, least)
            if solution is not None:
                best, chosen = solution
                least = best.seconds
                places = [int(m[at]) for m, at in zip(masks, made.spread(chosen), strict=True)]
        if best is not None:
            self.tally.add(best)
        return places


def solve_cones(
    made: Cones, looks: Sequence[int], held: HeldBytes | None, better_than: float = inf
) -> tuple[Solved, list[int]] | None:
    """The strategies of roots with which all cones together take least. ``looks``: equal numbers
    for operators that look alike. None where none fits or takes less than ``better_than``."""
    masks = [possible(table) for table in made.tables]
    if not all(map(len, masks)):
        return None
    colours: Sequence[int] = range(len(masks))
    if len(masks) > MOST_FREE:
        numbers: dict[Hashable, int] = {}
        shapes = [tuple(looks[member] for member in table.places) for table in made.tables]
        colours = [numbers.setdefault(shape, len(numbers)) for shape in shapes]
    tied = Tied.of(colours, masks)
    bytes_held = None if held is None else made.held(held)
    if bytes_held is not None:
        rows = ([bytes_held.bytes[v][masks[own[0]]] for v in own] for own in tied.members)
        bytes_held = HeldBytes([sum(row[1:], row[0]) for row in rows], bytes_held.limit)
    sizes = [len(mask) for mask in tied.picked(masks)]
    within = tied.factors(restricted(made.factors, masks))
    solution = solve(sizes, within, bytes_held, better_than, SOLVER_SECONDS, OPEN)
    if solution is None:
        return None
    chosen = tied.spread(solution.places)
    return solution, [int(mask[at]) for mask, at in zip(masks, chosen, strict=True)]


def _within(held: HeldBytes, masks: Sequence[Places]) -> HeldBytes:
    return HeldBytes([own[mask] for own, mask in zip(held.bytes, masks, strict=True)], held.limit)


def _outlined(
    machine: Machine,
    batches: MicroBatches,
    choices: StageChoices,
    bounds: tuple[int, ...],
    sparing: Sparing,
) -> Outline | None:
    """The pipeline of some stages on a machine; None where one of them does not fit."""
    slices, made = batches.slices, list[StageChoice]()
    for after, (first, last) in zip(
        reversed(range(len(bounds) - 1)), pairwise(bounds), strict=True
    ):
        choice = choices.best(first, last, min(after + 1, slices), sparing)
        if choice is None:
            return None
        made.append(choice)
    each = [choice.seconds(sparing, slices) for choice in made]
    seconds = sum(each) + (slices - 1) * max(each)
    places = [at for choice in made for at in choice.places]
    groups = alike(batches, machine, len(made))
    chosen = (batches.chosen(places),) * len(made)
    return Outline(groups, chosen, bounds, seconds, sparing=sparing)
