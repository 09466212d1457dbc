"""Stages of a small pipeline, moved while that makes its price less.

Problem: outlines are estimates. They take forward for a third of the work, leave out what overlaps
within a stage, and make the slowest stage even where the first and the last wait. So the bounds
that look best are not always those that are best once they are built, nor is the number of chunks.

Method: local search under the price of what is built. From a pipeline, a bound, or several in a
row, moves by one operator to either side, or one alone by two, since the pipeline between may not
fit. Whichever of these is fastest is next, as long as it is faster. The same begins at stages with
one chunk more, until that pays no more. A heuristic: it ends where no single move pays. Complexity:
by step, pipelines built twice for each run of bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from math import inf

from search.pipeline.outline import Outline, Way, with_chunks

FEW_DEVICES = 24
"""Pipelines of few operators on so many devices are improved: to build them takes milliseconds."""


@dataclass
class BoundMoves:
    """Improves pipelines of a small model. ``price``: seconds of a step of an outline that is
    built, infinite where it does not fit."""

    price: Callable[[Outline], float]
    more_chunks: bool
    """Whether stages may have more of them."""
    _priced: dict[Way, float] = field(init=False, default_factory=dict[Way, float])

    def improve(self, one: Outline) -> float:
        """Seconds of the best that is found from a pipeline on."""
        best, before = self._climb(one), inf
        chunks = one.interleave + 1
        while self.more_chunks and one.stages > 1 and chunks * one.stages <= one.bounds[-1]:
            made = with_chunks(one.in_any_memory, chunks)
            seconds = inf if made is None else self._climb(made)
            best = min(best, seconds)
            # One chunk may be by ZB-H1, and two slower than that while more are not.
            if seconds >= before:
                break
            before, chunks = seconds, chunks + 1
        return best

    def _climb(self, one: Outline) -> float:
        """Seconds where no single move pays."""
        seconds = self._seconds(one)
        while True:
            near = [(self._seconds(other), other) for other in moved(one)]
            least, other = min(near, key=lambda pair: pair[0], default=(seconds, one))
            if least >= seconds:
                return seconds
            seconds, one = least, other

    def _seconds(self, one: Outline) -> float:
        if one.way not in self._priced:
            self._priced[one.way] = self.price(one)
        return self._priced[one.way]


def moved(one: Outline) -> Iterator[Outline]:
    """A pipeline with some bounds in a row moved by one operator to the same side, or one bound by
    two, where that leaves no chunk without any."""
    inner = range(1, len(one.bounds) - 1)
    for first, last in combinations_with_replacement(inner, 2):
        for way in (-1, 1) if first < last else (-2, -1, 1, 2):
            some = [bound + way for bound in one.bounds[first : last + 1]]
            if one.bounds[first - 1] < some[0] and some[-1] < one.bounds[last + 1]:
                yield replace(one, bounds=(*one.bounds[:first], *some, *one.bounds[last + 1 :]))
