"""Stages of a small pipeline, moved as long as its price falls.

Problem: outlines are estimates. They take the forward pass for a third of the work, leave out
overlap within a stage, and balance the slowest stage even if the first and the last wait. So the
bounds with the best estimate are not always the best once they are built, nor is the number of
chunks.

Method: local search by the price of the pipeline that is built. In each step, a bound, or several
consecutive ones, move by one operator to either side. A single bound also moves by two, since the
pipeline between may not fit. The fastest result is next, as long as it is faster. The search is
repeated with one chunk more for each stage, until that gains nothing. A heuristic: it ends where no
single move gains. Complexity: in each step, two pipelines are built for each run of bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from math import inf

from search.pipeline.outline import ByStage, Outline, OutlineKey, with_chunks

FEW_DEVICES = 24
"""The most devices for which pipelines of few operators are improved. Building one takes
milliseconds."""


_Key = tuple[OutlineKey, ByStage]
"""The key of a pipeline, and its strategies."""


@dataclass
class BoundMoves:
    """Improves pipelines of a small model. ``price``: builds an outline and returns the seconds of
    a step, infinite if it does not fit."""

    price: Callable[[Outline], float]
    more_chunks: bool
    """Whether stages may get more chunks."""
    _priced: dict[_Key, float] = field(init=False, default_factory=dict[_Key, float])

    def improve(self, one: Outline) -> float:
        """Seconds of the best pipeline that is found from a given one."""
        best, before = self._climb(one), inf
        chunks = one.interleave + 1
        while self.more_chunks and one.stages > 1 and chunks * one.stages <= one.bounds[-1]:
            made = with_chunks(one.in_any_memory, chunks)
            seconds = inf if made is None else self._climb(made)
            best = min(best, seconds)
            # One chunk may use ZB-H1. Two chunks may be slower than that, and more be faster again.
            if seconds >= before:
                break
            before, chunks = seconds, chunks + 1
        return best

    def _climb(self, one: Outline) -> float:
        """Seconds of the pipeline at which no single move gains."""
        seconds = self._seconds(one)
        while True:
            near = [(self._seconds(other), other) for other in moved(one)]
            least, other = min(near, key=lambda pair: pair[0], default=(seconds, one))
            if least >= seconds:
                return seconds
            seconds, one = least, other

    def _seconds(self, one: Outline) -> float:
        key = one.key, one.choices
        if key not in self._priced:
            self._priced[key] = self.price(one)
        return self._priced[key]


def moved(one: Outline) -> Iterator[Outline]:
    """A pipeline with some consecutive bounds moved by one operator to the same side, or one bound
    by two, if no chunk loses all operators."""
    inner = range(1, len(one.bounds) - 1)
    for first, last in combinations_with_replacement(inner, 2):
        for way in (-1, 1) if first < last else (-2, -1, 1, 2):
            some = [bound + way for bound in one.bounds[first : last + 1]]
            if one.bounds[first - 1] < some[0] and some[-1] < one.bounds[last + 1]:
                yield replace(one, bounds=(*one.bounds[:first], *some, *one.bounds[last + 1 :]))
