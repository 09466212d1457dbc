"""Stages of a pipeline: operators in a row, cut so that the slowest stage takes least time.

Where stages have several chunks, a row is cut into chunks in the same way.

Problem: cut a row of n operators into stages. What a stage takes is the sum of what its operators
take, and of what comes in and goes out. The operators keep an order in which data flows forward
only, so every cut of the row is legal.

Method: dynamic programming over the ends of stages (as in PipeDream, SOSP 2019). Let the slowest
stage take no more than some bound. Then all operators before a cut fit as many bounds as stages
come before it, and those after it as many as come after. So of a deep model each cut lies in a
band, and only stages between two bands are looked at. Where the best of these takes more than the
bound, a larger one is tried; else no other is faster. It is exact for the times that it is given.

Complexity: the stages times the square of a band, which is a part of n as large as the bound is
above the mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcg.plan.pipeline import under_way

FEW = 500
"""Of so few operators, all stages are looked at at once."""
SLACK = (0.02, 0.1, 0.5, np.inf)
"""By how much the slowest stage may take longer than the least there could be, one after the
other."""
ROUNDING = 1e-9
"""Of sums in another order."""

StageTable = NDArray[np.float64]
"""[i, j]: of a stage that begins at the i-th position of one band, and ends before the j-th of
another; infinite where it has no operator."""


class Band(NamedTuple):
    """Positions in the row of operators, where a stage may begin or end; both ends included."""

    first: int
    last: int

    @property
    def positions(self) -> NDArray[np.intp]:
        return np.arange(self.first, self.last + 1)

    def has(self, other: Band) -> Band:
        """The positions in both."""
        return Band(max(self.first, other.first), min(self.last, other.last))


StageCosts = Callable[[Band, Band], StageTable]
"""What stages take, from where they begin and where they end."""


@dataclass(frozen=True)
class Crossing:
    """A tensor that may cross from one stage to others: who makes it, who reads it (ascending),
    and the seconds a step that sending it takes at each end."""

    maker: int
    readers: tuple[int, ...]
    seconds: float


def sums(values: Sequence[float] | NDArray[np.float64]) -> StageCosts:
    """A stage's sum over its operators."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])

    def between(starts: Band, ends: Band) -> StageTable:
        table = total[None, ends.positions] - total[starts.positions, None]
        return np.where(_legal(starts, ends), table, np.inf)

    return between


@dataclass(frozen=True, eq=False)
class CrossingSeconds:
    """What stages spend on tensors that come from stages before, and on those that go to later
    ones. A tensor that comes is received once; one that goes is counted once, however many stages
    it goes to."""

    crossings: Sequence[Crossing]

    @cached_property
    def _at(self) -> Mapping[int, Sequence[tuple[int, int, float]]]:
        """By position of a cut, what crosses it: who makes it, who is the first to read it from
        there on, and its seconds."""
        crossing: dict[int, list[tuple[int, int, float]]] = defaultdict(list)
        for c in self.crossings:
            cuts = range(c.maker + 1, c.readers[-1] + 1)
            for cut, first in zip(cuts, np.searchsorted(c.readers, cuts).tolist(), strict=True):
                crossing[cut].append((c.maker, c.readers[first], c.seconds))
        return crossing

    @cached_property
    def _read(self) -> Mapping[int, _Steps]:
        """By position of a cut, what crosses it in the order of who is the first to read it."""
        rows = ((at, sorted(own, key=lambda one: one[1])) for at, own in self._at.items())
        return {at: _Steps.of([(reader, s) for _, reader, s in own]) for at, own in rows}

    @cached_property
    def _made(self) -> Mapping[int, _Steps]:
        """By position of a cut, what crosses it, made last first; places count backwards."""
        rows = ((at, sorted(own, key=lambda one: -one[0])) for at, own in self._at.items())
        return {at: _Steps.of([(-maker, s) for maker, _, s in own]) for at, own in rows}

    def comes(self, starts: Band, ends: Band) -> StageTable:
        """From stages before: what crosses where a stage begins and is first read before its
        end."""
        table = np.zeros((len(starts.positions), len(ends.positions)))
        for row, start in zip(table, starts.positions.tolist(), strict=True):
            if start in self._read:
                row[:] = self._read[start].before(ends.positions)
        return np.where(_legal(starts, ends), table, np.inf)

    def goes(self, starts: Band, ends: Band) -> StageTable:
        """To later stages: what crosses where a stage ends and is made from its begin on."""
        table = np.zeros((len(ends.positions), len(starts.positions)))
        for row, end in zip(table, ends.positions.tolist(), strict=True):
            if end in self._made:
                row[:] = self._made[end].before(1 - starts.positions)
        return np.where(_legal(starts, ends), table.T, np.inf)


class _Steps(NamedTuple):
    """Seconds at ascending places, and their sum up to each."""

    places: NDArray[np.intp]
    sums: NDArray[np.float64]

    @staticmethod
    def of(seconds: Sequence[tuple[int, float]]) -> _Steps:
        places = np.array([place for place, _ in seconds], np.intp)
        return _Steps(places, np.cumsum([0.0, *(own for _, own in seconds)]))

    def before(self, places: NDArray[np.intp]) -> NDArray[np.float64]:
        """The sum of those that stand before each of some places."""
        return self.sums[np.searchsorted(self.places, places)]


def _legal(starts: Band, ends: Band) -> NDArray[np.bool_]:
    return starts.positions[:, None] < ends.positions[None, :]


def held(
    weights: StageCosts, activations: StageCosts, flights: Sequence[float]
) -> Callable[[int, Band, Band], StageTable]:
    """Bytes that chunks hold, as a function of the chunk's number. ``weights`` and ``activations``
    (of one micro-batch) are bytes; ``flights`` as of ``in_flight``."""

    def of(number: int, starts: Band, ends: Band) -> StageTable:
        return weights(starts, ends) + flights[number] * activations(starts, ends)

    return of


def in_flight(stages: int, micro_batches: int, interleave: int = 1) -> list[float]:
    """How many micro-batches each chunk holds, in the order in which data flows, when its stage
    holds most: early stages hold more. Where a stage has several chunks, it is their mean."""
    most = [under_way(s, stages, micro_batches, interleave) / interleave for s in range(stages)]
    return most * interleave


def balanced(
    seconds: Callable[[int, Band, Band], StageTable],
    least: Sequence[float] | NDArray[np.float64],
    stages: int,
    allowed: Callable[[int, Band, Band], NDArray[np.bool_]] | None = None,
) -> tuple[int, ...] | None:
    """The bounds of the stages, from 0 to the number of operators, for which the slowest stage
    takes least; None where there are none that are ``allowed``. ``seconds`` and ``allowed`` are
    tables for each stage, which is numbered from 0; ``least`` what each operator adds to any stage
    at least, and not less than 0."""
    before = np.concatenate([[0.0], np.cumsum(np.asarray(least, np.float64))])
    most = max(before[-1] / stages, np.max(least, initial=0.0))
    for slack in SLACK if len(least) > FEW else (np.inf,):
        bound = most * (1.0 + slack) if np.isfinite(slack) else np.inf
        slowest, bounds = _within(seconds, allowed, _bands(before, stages, bound))
        if bounds is not None and slowest <= bound:
            return bounds
    return None


def _bands(before: NDArray[np.float64], stages: int, bound: float) -> list[Band]:
    """Where the cuts lie if no stage takes more than a bound: the first at the begin, the last at
    the end of the row. ``before``: what the operators before each position take at least."""
    count = len(before) - 1
    if not np.isfinite(bound):
        return [Band(0, 0), *(Band(0, count) for _ in range(stages - 1)), Band(count, count)]
    bound *= 1.0 + ROUNDING
    bands = [Band(0, 0)]
    for stage in range(1, stages):
        after = before[-1] - (stages - stage) * bound
        first = int(np.searchsorted(before, after - ROUNDING * before[-1], side="left"))
        last = int(np.searchsorted(before, stage * bound, side="right")) - 1
        bands.append(Band(min(first, count), max(min(last, count), min(first, count))))
    return [*bands, Band(count, count)]


def _within(
    seconds: Callable[[int, Band, Band], StageTable],
    allowed: Callable[[int, Band, Band], NDArray[np.bool_]] | None,
    bands: Sequence[Band],
) -> tuple[float, tuple[int, ...] | None]:
    """The best of the stages between bands, and what the slowest of them takes."""
    best = np.zeros(1)
    cuts: list[NDArray[np.intp]] = []
    for stage, (starts, ends) in enumerate(pairwise(bands)):
        own = seconds(stage, starts, ends)
        if allowed is not None:
            own = np.where(allowed(stage, starts, ends), own, np.inf)
        slowest = np.maximum(best[:, None], own)
        cuts.append(slowest.argmin(axis=0))
        best = slowest.min(axis=0)
    if not np.isfinite(best[0]):
        return np.inf, None
    bounds = [bands[-1].last]
    for starts, ends, cut in reversed([*zip(bands[:-1], bands[1:], cuts, strict=True)]):
        bounds.append(starts.first + int(cut[bounds[-1] - ends.first]))
    return float(best[0]), tuple(reversed(bounds))


def could_fit(
    weights: NDArray[np.float64],
    activations: NDArray[np.float64],
    limit: float,
    flights: Sequence[float],
) -> bool:
    """Whether there may be stages that fit the memory of a device: each takes as many operators as
    fit, and that is all of them. ``weights`` and ``activations``: bytes of each operator;
    ``flights``: how many micro-batches each stage holds."""
    position, count = 0, len(weights)
    for flying in flights:
        held_bytes = weights + flying * activations
        total = np.concatenate([[0.0], np.cumsum(held_bytes)])
        most = total[position] + limit + ROUNDING * total[-1]
        position = int(np.searchsorted(total, most, side="right")) - 1
        if position == count:
            return True
    return False
