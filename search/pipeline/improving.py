"""Pipelines that were built, improved by the price of what is built.

Problem: outlines are estimates, and their strategies are chosen before the bounds of stages are
known. So the best outline is not always the best pipeline.

Method: local search. Bounds move, strategies are chosen again for the stages, and both are done in
turn as long as a step becomes shorter. The seconds of all stages count alike at first, and then by
how much they delay the step. In the end, the best pipeline recomputes less, and its operators are
issued in a better order. On many devices the strategies of the best pipeline are chosen again, and
that is all, as building takes long. A heuristic: it ends where nothing gains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

from search.cost.progress import check_time
from search.pipeline.built.chunk_weights import delays
from search.pipeline.built.in_stages import chosen_in_stages
from search.pipeline.built.moves import FEW_DEVICES, BoundMoves
from search.pipeline.built.orders import reorderings
from search.pipeline.built.pricer import BuiltPipeline, PipelinePricer, fastest
from search.pipeline.outline import Outline
from search.pipeline.stage_memory import PLAIN
from search.pipeline.tries import FEW_OPERATORS
from search.split.colours import MOST_FREE

FAR = 1.2
"""A pipeline is not refined if it takes more than this many times the time that it has to beat."""
NEAR = 1.5
"""Bounds of pipelines move that take at most this many times the time of the best, or the time that
they have to beat."""
NEARLY = 1.03
"""The pipeline that was best before is refined too if it takes at most this many times the time of
the best."""
WORK = 200_000
"""The most steps of all counts of memory, added up, to recompute less."""
FINALISTS = 1, 3
"""The number of pipelines whose strategies are chosen again: in general, and on few devices."""
ALIKE, DIFFERENCES = (None,), (1e-3, 0.1)
"""See ``PipelineImprover._chosen``."""
MOST_AT_BOUNDS = 8, 64
"""The strategies that are considered of an operator at a bound of stages: in general, and on few
devices."""


@dataclass
class PipelineImprover:
    """Improves pipelines of one model. ``faster_than``: the seconds of a step that they have to
    beat; ``built``: those so far, to which all that are built are added."""

    pricer: PipelinePricer
    faster_than: float
    built: list[BuiltPipeline]
    brief: bool = False
    """Whether to do no more than choose strategies of the best pipeline again."""

    def improve(self) -> None:
        """Improve the pipelines."""
        given = [*self.built]
        self._choose_again(ALIKE)
        if self._is_tiny:
            self._move_bounds(given)
            self._choose_again(ALIKE)
        before = fastest(self.built)
        self._choose_again(DIFFERENCES)
        if self._is_thorough and self._is_promising():
            self._refine_best(before)

    @property
    def _least(self) -> float:
        """Seconds of the fastest pipeline that fits, infinite if there is none."""
        best = fastest(self.built)
        return inf if best is None else best.seconds

    @property
    def _is_thorough(self) -> bool:
        return self.pricer.cost.machine.devices <= FEW_DEVICES and not self.brief

    @property
    def _operators(self) -> int:
        return len(self.built[0].outline.batches.nodes)

    @property
    def _is_tiny(self) -> bool:
        """Whether bounds may move one by one."""
        return self._is_thorough and self._operators <= FEW_OPERATORS

    def _is_promising(self) -> bool:
        return self._least < inf and self._least <= FAR * self.faster_than

    def _move_bounds(self, given: Sequence[BuiltPipeline]) -> None:
        """Move the bounds of the given pipelines that are nearly as fast as the best that fits. One
        that does not fit may do so with other bounds or more chunks."""
        most = NEAR * min(self.faster_than, self._least)
        near = sorted((one for one in given if one.seconds <= most), key=_seconds)
        self._moved(one.outline for one in near)

    def _choose_again(self, differences: Sequence[float | None]) -> None:
        """Choose the strategies of the fastest pipelines for their stages, and move their bounds,
        in turn, as long as a step becomes shorter. Their numbers of stages or micro-batches differ.
        ``differences``: as for ``_chosen``."""
        if self._operators > MOST_FREE or not self._is_promising():
            return
        fitting = sorted((one for one in self.built if one.fits), key=lambda one: -one.seconds)
        fastest_of = {(one.outline.stages, one.outline.groups.slices): one for one in fitting}
        for one in sorted(fastest_of.values(), key=_seconds)[: FINALISTS[self._is_thorough]]:
            better = self._in_stages(one, differences)
            while better is not None:
                better = self._in_stages(better, differences)
            one.outline.groups.forget()

    def _in_stages(
        self, one: BuiltPipeline, differences: Sequence[float | None]
    ) -> BuiltPipeline | None:
        """Build a pipeline with strategies for its stages, and move its bounds then. Returns the
        result if it is faster. ``differences``: as for ``_chosen``."""
        number = len(self.built)
        best = fastest([self._build(outline) for outline in self._chosen(one, differences)])
        if best is None or best.seconds >= one.seconds:
            return None
        if self._is_tiny:
            self._moved([best.outline])
        return fastest(self.built[number:])

    def _chosen(self, one: BuiltPipeline, differences: Sequence[float | None]) -> Iterator[Outline]:
        """The different outlines with strategies for the stages of a pipeline. ``differences``: the
        parts of a step by which a chunk takes longer to see by how much it delays the step, or None
        if the seconds of all chunks count alike."""
        outline, crossings = one.outline, self.pricer.crossings
        most, slices = MOST_AT_BOUNDS[self._is_thorough], outline.groups.slices
        order = slices, one.kind, outline.interleave
        known = {outline.chosen.strategies}
        for by in differences:
            weights = None if by is None else delays(one.each, *order, by).raised(slices)
            made = chosen_in_stages(outline, crossings, most, weights)
            if made.chosen.strategies not in known:
                known.add(made.chosen.strategies)
                yield made

    def _moved(self, outlines: Iterable[Outline]) -> None:
        """Move bounds, from each outline on, as long as that gains."""

        def price(one: Outline) -> float:
            check_time()
            kind = "zb-h1" if self._may_put_off(one) else self.pricer.kind
            made = self._build(replace(one, kind=kind))
            return made.seconds if made.fits else inf

        # The memory of chunks is counted once they are built.
        moves = BoundMoves(price, more_chunks=self.pricer.kind == "1f1b")
        for one in outlines:
            moves.improve(one)

    def _may_put_off(self, one: Outline) -> bool:
        """Whether a pipeline may have a pass for weights."""
        is_plain = one.sparing == PLAIN and one.interleave == 1
        return self.pricer.kind == "1f1b" and is_plain and one.stages > 1

    def _refine_best(self, before: BuiltPipeline | None) -> None:
        """Refine the best pipeline, and the one that was best ``before`` stages were weighed, if it
        is nearly as fast: a better order of issue may put that one ahead again."""
        best = fastest(self.built)
        assert before is not None, "one is promising"
        assert best is not None, "it is no worse than the one before"
        if before is not best and before.seconds <= NEARLY * best.seconds:
            self._refine(before)
        self._refine(best)

    def _refine(self, given: BuiltPipeline) -> None:
        """Refine what a pipeline recomputes, and its order of issue. Only pipelines that fit are
        added."""
        less = self.pricer.recomputing_less(given, WORK)
        fewer = [] if less is given else [less]
        for one in chain(fewer, reorderings(less, self.pricer.reordered)):
            self.built.append(one)
            self.pricer.teller.found(one.seconds)

    def _build(self, one: Outline) -> BuiltPipeline:
        self.built.append(self.pricer.built(one))
        return self.built[-1]


def _seconds(one: BuiltPipeline) -> float:
    return one.seconds
