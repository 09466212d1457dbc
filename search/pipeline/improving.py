"""Pipelines that were built, improved by the price of what is built.

Problem: outlines are estimates, and their strategies are chosen before the bounds of stages are
known. So the best outline is not always the best pipeline.

Method: local search. Bounds move, strategies are chosen again for the stages, and both are done in
turn as long as a step becomes shorter. In the end, the best pipeline recomputes less, and its
operators are issued in a better order. On many devices the strategies of the best pipeline are
chosen again, and that is all, as building takes long. A heuristic: it ends where nothing gains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from search.cost.progress import check_time
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
WORK = 200_000
"""The most steps of all counts of memory, added up, to recompute less."""
FINALISTS = 1, 3
"""The number of pipelines whose strategies are chosen again: in general, and on few devices."""
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
        self._choose_again()
        if self._is_tiny:
            self._move_bounds(given)
            self._choose_again()
        if self._is_thorough and self._is_promising():
            self._refine()

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
        best = fastest(self.built)
        return best is not None and best.seconds <= FAR * self.faster_than

    def _move_bounds(self, given: Sequence[BuiltPipeline]) -> None:
        """Move the bounds of the given pipelines that are nearly as fast as the best that fits. One
        that does not fit may do so with other bounds or more chunks."""
        fitting = min((one.seconds for one in self.built if one.fits), default=inf)
        most = NEAR * min(self.faster_than, fitting)
        near = sorted((one for one in given if one.seconds <= most), key=_seconds)
        self._moved(one.outline for one in near)

    def _choose_again(self) -> None:
        """Choose the strategies of the fastest pipelines for their stages, and move their bounds,
        in turn, as long as a step becomes shorter. Their numbers of stages or micro-batches
        differ."""
        if self._operators > MOST_FREE or not self._is_promising():
            return
        fitting = sorted((one for one in self.built if one.fits), key=lambda one: -one.seconds)
        fastest_of = {(one.outline.stages, one.outline.groups.slices): one for one in fitting}
        for one in sorted(fastest_of.values(), key=_seconds)[: FINALISTS[self._is_thorough]]:
            better = self._in_stages(one)
            while better is not None:
                better = self._in_stages(better)
            one.outline.groups.forget()

    def _in_stages(self, one: BuiltPipeline) -> BuiltPipeline | None:
        """Build a pipeline with strategies for its stages, and move its bounds then. Returns the
        result if it is faster."""
        crossings, most = self.pricer.crossings, MOST_AT_BOUNDS[self._is_thorough]
        outline = chosen_in_stages(one.outline, crossings, most)
        if outline.chosen.strategies == one.outline.chosen.strategies:
            return None
        number, made = len(self.built), self._build(outline)
        if not made.fits or made.seconds >= one.seconds:
            return None
        if self._is_tiny:
            self._moved([outline])
        return fastest(self.built[number:])

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

    def _refine(self) -> None:
        """Refine what the best pipeline recomputes, and its order of issue."""
        best = fastest(self.built)
        assert best is not None
        less = self.pricer.recomputing_less(best, WORK)
        if less is not best:
            self.built.append(less)
        for one in reorderings(less, self.pricer.reordered):
            self.built.append(one)

    def _build(self, one: Outline) -> BuiltPipeline:
        self.built.append(self.pricer.built(one))
        return self.built[-1]


def _seconds(one: BuiltPipeline) -> float:
    return one.seconds
