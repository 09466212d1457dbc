"""A pipeline as it would run: built by the rules, simulated, counted, and with results recomputed
where it would not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pcg.graph.graph import Node
from pcg.placement.schedule import Schedule, schedule
from search.choices import Recompute
from search.cost.units import forward_seconds, ways_to_fit
from search.map.building import Cut
from search.pipeline.build import build
from search.pipeline.clock import step_seconds
from search.pipeline.crossing import Crossings
from search.pipeline.micro import MicroBatches
from search.pipeline.price import StageGroups, stage_bytes, stage_seconds
from search.pipeline.tries import PLAINLY
from search.planners.common import PlannerSetting


@dataclass(frozen=True)
class BuiltStages:
    """A pipeline with its price: ``seconds`` of a step, ``memory`` bytes on the fullest device."""

    cut: Cut
    steps: Schedule
    seconds: float
    memory: int
    recompute: frozenset[Node]


def built(
    setting: PlannerSetting, batches: MicroBatches, places: Sequence[int], bounds: Sequence[int]
) -> BuiltStages:
    """A pipeline whose stages end at some ``bounds``, the fastest that fits of it as it is and of
    it with results recomputed; else what takes least memory. ``places``: of the strategies of all
    operators in their spaces."""
    cost, slices = setting.cost(), batches.slices
    groups = StageGroups(len(bounds) - 1, batches.cost.machine.devices, slices)
    cut = build(batches, batches.chosen(places), bounds, crossings=Crossings(cost))
    steps = schedule(cut.graph, cut.views)
    limit = setting.machine.memory_limit()

    def counted(nodes: frozenset[Node]) -> int:
        return max(stage_bytes(steps, cost, groups, "1f1b", nodes))

    def priced(nodes: frozenset[Node]) -> BuiltStages:
        seconds = step_seconds(stage_seconds(steps, cost, groups, nodes), slices)
        return BuiltStages(cut, steps, seconds, counted(nodes), nodes)

    made = [priced(frozenset())] if setting.recompute in PLAINLY else []
    if setting.recompute is not Recompute.NONE and not any(one.memory <= limit for one in made):
        seconds = forward_seconds(steps, cost, slices)
        ways = ways_to_fit(steps, seconds, counted, limit, setting.recompute, groups.size)
        made += [priced(nodes) for nodes in ways]
    made = made or [priced(frozenset())]
    fitting = [one for one in made if one.memory <= limit]
    if not fitting:
        setting.teller.priced()
        return min(made, key=lambda one: one.memory)
    best = min(fitting, key=lambda one: one.seconds)
    setting.teller.priced(best.seconds)
    return best
