"""TePDist: strategies of cones by an integer program, stages where least passes.

Problem: cut a model's operators into stages, and each operator by a strategy.

Method: (Zhang et al., Auto-Parallelizing Large Models with Rhino: A Systematic Approach on
Production AI Platform, arXiv:2302.08141; the system was published as TePDist.) The sequence of
operators is cut into stages with balanced operations and the least bytes between them (``stages``).
Each stage is a segment. Its operators are clustered into cones. Dynamic programming finds the
strategies of a cone by that of its root (``cones``), and an integer program chooses those of all
roots (``search.planners.ilp``). The most promising pipelines are built, simulated, and their memory
counted (``search.planners.staged``).

Complexity: an integer program for each stage, logical mesh and number of micro-batches. Optimal for
the sums over cones, within the solver's gap.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from pcg.machine import Machine
from pcg.memo import Memo
from search.choices import Recompute
from search.cost.progress import check_time
from search.map.choose.factors import Factor, Places, restricted
from search.map.choose.tied import TiedVariables
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import Outline
from search.pipeline.stage_batches import alike
from search.pipeline.stage_memory import PLAIN, Sparing
from search.pipeline.tries import PLAIN_FIRST, SPARING
from search.planners.common import PlannerSetting
from search.planners.ilp import HeldBytes, Solution, Tally, solve
from search.planners.row_prices import RowPrices, StageChoice, logical_masks
from search.planners.stage_choices import OPEN_GAP, StageChoices
from search.planners.staged import StagedPlanner, StagedSearch
from search.planners.tepdist.cones import Cones, cones, possible
from search.planners.tepdist.stages import stage_bounds

MOST_FREE = 60
"""The most cones of a stage that are chosen independently. Of more, those that look alike are cut
alike."""
SOLVER_SECONDS = 20.0
"""The time limit of one integer program, if its relaxation is not enough."""
ROOM = 0.85
"""The fraction of a device's memory for weights and saved tensors."""


@dataclass(frozen=True)
class TepdistPlanner(StagedPlanner):
    """Plans as TePDist does. ``micro_batches``: the numbers to try, by default those of a ladder;
    ``seconds``: the time limit of the search."""

    setting: PlannerSetting
    seconds: float = 600.0
    micro_batches: tuple[int, ...] | None = None

    def search(self, tally: Tally) -> StagedSearch:
        levels = _ConeLevels(self.setting, tally)
        return StagedSearch(self.setting, "tepdist", levels, self.micro_batches, self.seconds)


@dataclass(frozen=True)
class _ConeLevels:
    """TePDist's levels: stages first, then cones within each."""

    setting: PlannerSetting
    tally: Tally
    _bounds: Memo[tuple[int, int], tuple[int, ...]] = field(
        init=False, default_factory=Memo[tuple[int, int], tuple[int, ...]]
    )

    @property
    def _limit(self) -> float:
        return ROOM * self.setting.machine.memory_limit()

    def whole(self, prices: RowPrices) -> Iterator[Sequence[int]]:
        """The fastest strategies on all devices, and the fastest that fit without recomputation."""
        for limit in (inf, self._limit):
            choice = StageChoices(prices, limit, self._places).best(0, len(prices.nodes), 1)
            if choice is not None:
                yield choice.places

    def pipelines(self, batches: MicroBatches, prices: RowPrices, stages: int) -> Iterator[Outline]:
        """The best pipelines without and with recomputation."""
        graph = batches.streams.graph
        bounds = self._bounds.get((id(graph), stages), lambda: stage_bounds(graph, stages))
        choices, recompute = StageChoices(prices, self._limit, self._places), self.setting.recompute
        sparings = [PLAIN] if recompute in PLAIN_FIRST else []
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
        """The places of the strategies of cones with the least sum, on the best logical mesh."""
        spaces, colours_of = prices.spaces[first:last], prices.colours[first:last]
        roots = cones(prices.nodes[first:last])
        best: Solution | None = None
        places: list[int] | None = None
        least = inf
        for split in range(max(spaces[0].strategies.shape[1], 1)):
            masks = logical_masks(spaces, split)
            sizes = [len(mask) for mask in masks]
            made = Cones.made(roots, sizes, restricted(factors, masks))
            own = None if held is None else _within(held, masks)
            solution = solve_cones(made, colours_of, own, least)
            if solution is not None:
                best, chosen = solution
                least = best.seconds
                places = [int(m[at]) for m, at in zip(masks, made.spread(chosen), strict=True)]
        if best is not None:
            self.tally.add(best)
        return places


def solve_cones(
    made: Cones, colours_of: Sequence[int], held: HeldBytes | None, better_than: float = inf
) -> tuple[Solution, list[int]] | None:
    """Return the strategies of roots with the least sum over all cones. None if none fits or none
    is below ``better_than``. ``colours_of``: equal numbers for operators that look alike."""
    masks = [possible(table) for table in made.tables]
    if not all(map(len, masks)):
        return None
    colours: Sequence[int] = range(len(masks))
    if len(masks) > MOST_FREE:
        numbers: dict[Hashable, int] = {}
        shapes = [tuple(colours_of[member] for member in table.places) for table in made.tables]
        colours = [numbers.setdefault(shape, len(numbers)) for shape in shapes]
    tied = TiedVariables.of(colours, masks)
    bytes_held = None if held is None else made.held(held)
    if bytes_held is not None:
        rows = ([bytes_held.bytes[v][masks[own[0]]] for v in own] for own in tied.members)
        bytes_held = HeldBytes([sum(row[1:], row[0]) for row in rows], bytes_held.limit)
    sizes = [len(mask) for mask in tied.picked(masks)]
    within = tied.factors(restricted(made.factors, masks))
    solution = solve(sizes, within, bytes_held, better_than, SOLVER_SECONDS, OPEN_GAP)
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
    """The pipeline of given stages on a machine; None if one of them does not fit."""
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
