"""Pipelines that are built from outlines, each with its price.

A pipeline that does not fit in memory recomputes a part of the forward pass. It may also put off
the gradients of weights (ZB-H1). Of these ways, the fastest that fits is the price of the pipeline.
The recomputation is chosen by the bytes that it frees, whichever stage they are on. So the best
pipeline is made to recompute less (``search.refine.kept_units``): stages near the last one have
fewer micro-batches under way, and hold less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from pcg.graph.graph import Node
from pcg.placement.schedule import Schedule
from pcg.plan.pipeline import ScheduleKind
from search.choices import Recompute
from search.cost.cost import CostModel
from search.cost.progress import Phases, Teller, check_time
from search.cost.units import (
    CountBytes,
    forward_seconds,
    recomputations_to_fit,
    union,
    units_of,
)
from search.map.building import Cut
from search.map.rules.fully_sharded import PlacedGraph
from search.pipeline.built.build import PipelineParts
from search.pipeline.built.price import StageGroups, chunks_on, stage_bytes, stage_seconds
from search.pipeline.clock import StageSeconds, step_seconds
from search.pipeline.crossing import Crossings
from search.pipeline.outline import Outline
from search.pipeline.tries import PLAIN_FIRST
from search.refine.kept_units import KeptUnits


@dataclass(frozen=True)
class BuiltPipeline:
    """A pipeline with its price. ``seconds``: of a step; ``memory``: bytes on the fullest device;
    ``excess``: the largest number of bytes by which a device exceeds its memory, at most 0 if the
    pipeline fits."""

    outline: Outline
    placed: PlacedGraph
    steps: Schedule
    seconds: float
    memory: int
    excess: int
    recompute: frozenset[Node] = frozenset()
    kind: ScheduleKind = "1f1b"
    each: tuple[StageSeconds, ...] = ()
    """The work of each chunk, in the order of data."""

    @property
    def fits(self) -> bool:
        return self.excess <= 0

    @property
    def over(self) -> int:
        """Bytes by which the pipeline exceeds the memory of a device, or 0."""
        return max(self.excess, 0)


def fastest(built: Iterable[BuiltPipeline]) -> BuiltPipeline | None:
    """The fastest pipeline that fits, if there is one."""
    return min((one for one in built if one.fits), key=lambda one: one.seconds, default=None)


@dataclass
class PipelinePricer:
    """Builds and prices pipelines. ``crossings``: how tensors arrive at a stage; ``kind``: the
    schedule of those that don't put off the gradients of weights."""

    crossings: Crossings
    kind: ScheduleKind
    recompute: Recompute
    phases: Phases
    teller: Teller

    @property
    def cost(self) -> CostModel:
        """The cost model of the whole machine."""
        return self.crossings.cost

    def built(self, outline: Outline) -> BuiltPipeline:
        """The pipeline of an outline."""
        made = self.phases.timed("building", self._parts(outline).placed)
        steps = self.phases.timed("scheduling", made.schedule)
        # A pass for weights may take more memory than 1F1B, or no less time.
        kinds = dict.fromkeys((outline.kind, self.kind))
        ways = [self._fastest(outline, made, steps, kind) for kind in kinds]
        best = min(ways, key=lambda one: (one.over, one.seconds))
        self.teller.priced(best.seconds if best.fits else inf)
        return best

    def reordered(self, given: BuiltPipeline, order: tuple[Node, ...]) -> BuiltPipeline:
        """The same pipeline in another order of issue. It recomputes the same."""
        made = replace(given.placed, order=order)
        return self._priced(given.outline, made, made.schedule(), given.kind, given.recompute)

    def recomputing_less(self, given: BuiltPipeline, work: int) -> BuiltPipeline:
        """The pipeline with some of its recomputation left out or exchanged, if a step is shorter
        so; else as it is. ``work``: the most steps of all counts of memory, added up."""
        if self.recompute is not Recompute.AUTO or not given.recompute:
            return given
        outline, steps, kind = given.outline, given.steps, given.kind
        counted, groups = self._counting(outline, steps, kind), _groups(outline)
        seconds = forward_seconds(steps, self.cost, groups.micro_batches)
        units = units_of(steps, seconds, counted, *_within(steps, groups))
        chosen = tuple(unit for unit in units if unit.nodes <= given.recompute)
        if union(chosen) != given.recompute:
            return given
        most = work // len(steps.steps)
        nodes = union(KeptUnits(units, counted, 0, self.cost.itemsize, most).fewer(chosen))
        less = self._priced(outline, given.placed, steps, kind, nodes)
        return less if less.fits and less.seconds < given.seconds else given

    def derived(self, given: BuiltPipeline) -> Cut:
        """The graph of a pipeline with its derivation from the model."""
        return replace(self._parts(given.outline).derived(), order=given.placed.order)

    def _parts(self, one: Outline) -> PipelineParts:
        shape = one.bounds, one.interleave, one.sparing.parts
        return PipelineParts(one.batches, one.chosen, *shape, self.crossings)

    def _fastest(
        self, outline: Outline, made: PlacedGraph, steps: Schedule, kind: ScheduleKind
    ) -> BuiltPipeline:
        """The price of a pipeline, with recomputation if it is needed to fit: the fastest way that
        fits."""
        counted = self._counting(outline, steps, kind)
        groups, priced = _groups(outline), partial(self._priced, outline, made, steps, kind)
        known = [priced(frozenset())] if self.recompute in PLAIN_FIRST else []
        if self.recompute is not Recompute.NONE and not any(one.fits for one in known):
            seconds = forward_seconds(steps, self.cost, groups.micro_batches)
            within = _within(steps, groups)
            ways = recomputations_to_fit(steps, seconds, counted, 0, self.recompute, *within)
            known += [priced(nodes) for nodes in ways]
        every = known or [priced(frozenset())]
        return min(every, key=lambda one: (one.over, one.seconds))

    def _counting(self, outline: Outline, steps: Schedule, kind: ScheduleKind) -> CountBytes:
        """The largest number of bytes by which a device exceeds its memory, as a function of the
        operators whose results are recomputed."""

        def counted(nodes: frozenset[Node]) -> int:
            check_time()
            return _excess(outline, stage_bytes(steps, self.cost, groups, kind, nodes))

        groups = _groups(outline)
        return counted

    def _priced(
        self,
        outline: Outline,
        made: PlacedGraph,
        steps: Schedule,
        kind: ScheduleKind,
        nodes: frozenset[Node],
    ) -> BuiltPipeline:
        """The price of a pipeline that recomputes the results of ``nodes``."""
        groups = _groups(outline)
        run = partial(stage_seconds, steps, self.cost, groups, nodes, kind)
        each = self.phases.timed("simulating", run)
        seconds = step_seconds(each, groups.micro_batches, kind, groups.interleave)
        held = stage_bytes(steps, self.cost, groups, kind, nodes)
        over = _excess(outline, held)
        return BuiltPipeline(outline, made, steps, seconds, max(held), over, nodes, kind, each)


def _groups(outline: Outline) -> StageGroups:
    own = outline.groups
    return StageGroups(own.stages, own.size, own.slices, outline.interleave)


def _within(steps: Schedule, groups: StageGroups) -> tuple[int, Mapping[int, int]]:
    """The number of devices of a stage, and the chunks of steps, as ``units_of`` takes them."""
    chunks = chunks_on(steps, groups)
    return groups.size, chunks.numbers if chunks else {}


def _excess(outline: Outline, held: Sequence[int]) -> int:
    """The largest number of bytes by which a device exceeds its memory. ``held``: the bytes on the
    fullest device of each stage."""
    limits = [own.cost.machine.memory_limit() for own in outline.groups.each]
    return max(own - limit for own, limit in zip(held, limits, strict=True))
