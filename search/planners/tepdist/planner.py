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

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from pcg.memo import Memo
from search.map.choose.factors import Places, restricted
from search.map.choose.tied import TiedVariables
from search.pipeline.micro import MicroBatches
from search.pipeline.outline import Outline
from search.pipeline.stage_batches import alike
from search.pipeline.stage_memory import Sparing
from search.planners.common import PlannerSetting
from search.planners.ilp import HeldBytes, Solution, Tally, solve
from search.planners.row_prices import StageChoice, logical_masks
from search.planners.stage_choices import OPEN_GAP, SolvedLevels, StageChoices, StageProblem
from search.planners.staged import StagedPlanner, StagedSearch
from search.planners.tepdist.cones import Cones, cones, possible
from search.planners.tepdist.stages import stage_bounds

MOST_FREE = 60
"""The most cones of a stage that are chosen independently. Of more, those that look alike are cut
alike."""
SOLVER_SECONDS = 20.0
"""The time limit of one integer program, if its relaxation is not enough."""


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
class _ConeLevels(SolvedLevels):
    """TePDist's levels: stages first, then cones within each."""

    _bounds: Memo[tuple[int, int], tuple[int, ...]] = field(
        init=False, default_factory=Memo[tuple[int, int], tuple[int, ...]]
    )

    def outlined(
        self, batches: MicroBatches, choices: StageChoices, stages: int, sparing: Sparing
    ) -> Outline | None:
        graph = batches.streams.graph
        bounds = self._bounds.get((id(graph), stages), lambda: stage_bounds(graph, stages))
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
        groups = alike(batches, self.setting.machine, len(made))
        chosen = (batches.chosen(places),) * len(made)
        return Outline(groups, chosen, bounds, seconds, sparing=sparing)

    def places(self, stage: StageProblem) -> Sequence[int] | None:
        """The places of the strategies of cones with the least sum, on the best logical mesh."""
        prices, own = stage.prices, slice(stage.first, stage.last)
        spaces, roots = prices.spaces[own], cones(prices.nodes[own])
        best: Solution | None = None
        places: list[int] | None = None
        least = inf
        for split in range(max(spaces[0].strategies.shape[1], 1)):
            masks = logical_masks(spaces, split)
            sizes = [len(mask) for mask in masks]
            made = Cones.made(roots, sizes, restricted(stage.factors, masks))
            held = None if stage.held is None else _within(stage.held, masks)
            solution = solve_cones(made, prices.colours[own], held, least)
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
