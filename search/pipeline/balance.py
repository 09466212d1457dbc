"""Stages of a pipeline: operators in a row, cut so that the slowest stage takes least time.

Where stages have several chunks, a row is cut into chunks in the same way.

Problem: cut a row of n operators into stages. What a stage takes is the sum of what its operators
take, and of what comes in and goes out. The operators keep an order in which data flows forward
only, so every cut of the row is legal.

Method: dynamic programming over the ends of stages (as in PipeDream, SOSP 2019). Let the slowest
stage take no more than some bound. Then all operators before a cut fit as many bounds as stages
come before it, and those after it as many as come after; and so it is with the memory that stages
have. So of a deep model each cut lies in a band, and only stages between two bands are looked at
that are within the bound and fit. Where the best of these takes more than the bound, a larger one
is tried, but none larger than what was found; else no other is faster. It is exact for the times
that it is given.

Complexity: the stages times a band, which is a part of n as large as the bound is above the mean,
times the operators of a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcg.plan.pipeline import under_way
from search.cost.progress import check_time

FEW = 500
"""Of so few operators, all stages are looked at at once."""
SLACK = (0.02, 0.1, 0.5, 2.0, np.inf)
"""By how much the slowest stage may take longer than the least there could be, one after the
other."""
LARGEST = FEW * FEW
"""So large a table of stages is made at once; a larger one by parts, of which many need none."""
PART = 64
"""Begins of stages of such a part."""
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
    def _read(self) -> _Steps:
        """By position of a cut, what crosses it in the order of who is the first to read it."""
        return _Steps.of(self._at, self._at.readers)

    @cached_property
    def _made(self) -> _Steps:
        """By position of a cut, what crosses it, made last first; places count backwards."""
        return _Steps.of(self._at, self._at.end - self._at.makers)

    @cached_property
    def _at(self) -> _Cuts:
        return _Cuts.of(self.crossings)

    def comes(self, starts: Band, ends: Band) -> StageTable:
        """From stages before: what crosses where a stage begins and is first read before its
        end."""
        table = self._read.before(starts.positions[:, None], ends.positions[None, :])
        return np.where(_legal(starts, ends), table, np.inf)

    def goes(self, starts: Band, ends: Band) -> StageTable:
        """To later stages: what crosses where a stage ends and is made from its begin on."""
        backwards = self._at.end + 1 - starts.positions
        table = self._made.before(ends.positions[None, :], backwards[:, None])
        return np.where(_legal(starts, ends), table, np.inf)


class _Cuts(NamedTuple):
    """What crosses each cut of a row, one entry for a cut and a tensor: the position of the cut,
    who makes the tensor, who is the first to read it from there on, and its seconds."""

    cuts: NDArray[np.intp]
    makers: NDArray[np.intp]
    readers: NDArray[np.intp]
    seconds: NDArray[np.float64]
    end: int
    """A position after all that are crossed."""

    @staticmethod
    def of(crossings: Sequence[Crossing]) -> _Cuts:
        makers = np.array([c.maker for c in crossings], np.intp)
        lengths = np.array([c.readers[-1] - c.maker for c in crossings], np.intp)
        cuts = [np.arange(c.maker + 1, c.readers[-1] + 1) for c in crossings]
        readers = [
            np.asarray(c.readers)[np.searchsorted(c.readers, own)]
            for c, own in zip(crossings, cuts, strict=True)
        ]
        none = np.zeros(0, np.intp)
        end = max((c.readers[-1] for c in crossings), default=0) + 1
        return _Cuts(
            np.concatenate([none, *cuts]),
            np.repeat(makers, lengths),
            np.concatenate([none, *readers]),
            np.repeat([float(c.seconds) for c in crossings], lengths),
            end,
        )


class _Steps(NamedTuple):
    """Seconds at ascending places of each cut, and their sums up to each, which begin with 0."""

    keys: NDArray[np.intp]
    """The cut times ``width``, and the place."""
    sums: NDArray[np.float64]
    width: int
    last: int
    """No cut after this one is crossed."""

    @staticmethod
    def of(at: _Cuts, places: NDArray[np.intp]) -> _Steps:
        order = np.lexsort((places, at.cuts))
        bounds = np.searchsorted(at.cuts[order], np.arange(at.end + 2))
        own = at.seconds[order]
        sums = [np.cumsum([0.0, *own[a:b]]) for a, b in pairwise(bounds.tolist())]
        width = at.end + 2
        return _Steps(at.cuts[order] * width + places[order], np.concatenate(sums), width, at.end)

    def before(self, cuts: NDArray[np.intp], places: NDArray[np.intp]) -> StageTable:
        """The sum of those that stand before a place of a cut, for all pairs."""
        cuts, places = np.minimum(cuts, self.last), np.clip(places, 0, self.width - 1)
        # Each cut before has one more sum than it has places.
        return self.sums[np.searchsorted(self.keys, cuts * self.width + places) + cuts]


def _legal(starts: Band, ends: Band) -> NDArray[np.bool_]:
    return starts.positions[:, None] < ends.positions[None, :]


@dataclass(frozen=True, eq=False)
class OperatorBytes:
    """What operators in a row hold on one kind of device. ``weights`` and ``activations`` (of one
    micro-batch): bytes of each."""

    weights: NDArray[np.float64]
    activations: NDArray[np.float64]

    def held(self, flying: float, starts: Band, ends: Band) -> StageTable:
        """Bytes of a chunk that holds so many micro-batches."""
        weights, activations = self._tables
        return weights(starts, ends) + flying * activations(starts, ends)

    def totals(self, flying: float) -> NDArray[np.float64]:
        """Bytes of the operators before each position."""
        if flying not in self._known:
            each = self.weights + flying * self.activations
            self._known[flying] = np.concatenate([[0.0], np.cumsum(each)])
        return self._known[flying]

    @cached_property
    def _tables(self) -> tuple[StageCosts, StageCosts]:
        return sums(self.weights), sums(self.activations)

    @cached_property
    def _known(self) -> dict[float, NDArray[np.float64]]:
        return {}


@dataclass(frozen=True, eq=False)
class ChunkMemory:
    """What chunks in a row hold, and how much they may. ``operators``: as on the devices of each
    stage, and ``limits``: bytes that a stage may hold; one entry where all stages are alike.
    ``flights`` as of ``in_flight``."""

    operators: Sequence[OperatorBytes]
    flights: Sequence[float]
    limits: Sequence[float]

    def held(self, number: int, starts: Band, ends: Band) -> StageTable:
        """Bytes of a chunk."""
        return self._on(number).held(self.flights[number], starts, ends)

    def allowed(self, number: int, starts: Band, ends: Band) -> NDArray[np.bool_]:
        """Whether a chunk fits."""
        return self.held(number, starts, ends) <= self._limit(number)

    def last(self, number: int, start: int) -> int:
        """Where a chunk ends at the latest that begins at a position and fits, up to rounding."""
        total = self._on(number).totals(self.flights[number])
        most = total[start] + self._limit(number) + ROUNDING * total[-1]
        return int(np.searchsorted(total, most, side="right")) - 1

    def first(self, number: int, end: int) -> int:
        """Where a chunk begins at the earliest that ends at a position and fits."""
        total = self._on(number).totals(self.flights[number])
        return int(np.searchsorted(total, total[end] - self._limit(number) - ROUNDING * total[-1]))

    @cached_property
    def bands(self) -> list[Band] | None:
        """Where the cuts lie if all chunks fit; None where they cannot."""
        count, chunks = len(self.operators[0].weights), len(self.flights)
        lasts, firsts = [0], [count]
        for number in range(chunks):
            lasts.append(self.last(number, lasts[-1]))
            firsts.append(self.first(chunks - 1 - number, firsts[-1]))
        if lasts[-1] < count:
            return None
        return [Band(*pair) for pair in zip(reversed(firsts), lasts, strict=True)]

    def _on(self, number: int) -> OperatorBytes:
        return self.operators[number % len(self.operators)]

    def _limit(self, number: int) -> float:
        return self.limits[number % len(self.limits)]


def in_flight(stages: int, micro_batches: int, interleave: int = 1) -> list[float]:
    """How many micro-batches each chunk holds, in the order in which data flows, when its stage
    holds most: early stages hold more. Where a stage has several chunks, it is their mean."""
    most = [under_way(s, stages, micro_batches, interleave) / interleave for s in range(stages)]
    return most * interleave


def balanced(
    seconds: Callable[[int, Band, Band], StageTable],
    least: Sequence[float] | NDArray[np.float64],
    stages: int,
    memory: ChunkMemory | None = None,
) -> tuple[int, ...] | None:
    """The bounds of the stages, from 0 to the number of operators, for which the slowest stage
    takes least; None where there are none that fit. ``seconds`` is a table for each stage, which is
    numbered from 0; ``least`` what each operator adds to any stage at least, and not less than 0;
    ``memory``: what stages may hold, any amount without that."""
    before = np.concatenate([[0.0], np.cumsum(np.asarray(least, np.float64))])
    if memory is not None and memory.bands is None:
        return None
    most = max(before[-1] / stages, np.max(least, initial=0.0))
    known = np.inf
    for slack in SLACK if len(least) > FEW else (np.inf,):
        # What was found before is no less than the best.
        bound = min(known, most * (1.0 + slack) if np.isfinite(slack) else np.inf)
        slowest, bounds = _Row(seconds, before, memory, bound).best(stages)
        if bounds is not None and slowest <= bound:
            return bounds
        known = min(known, slowest)
    return None


@dataclass(frozen=True, eq=False)
class _Row:
    """A row to be cut such that no stage takes more than a bound. ``before``: what the operators
    before each position take at least; the others as of ``balanced``."""

    seconds: Callable[[int, Band, Band], StageTable]
    before: NDArray[np.float64]
    memory: ChunkMemory | None
    bound: float

    def best(self, stages: int) -> tuple[float, tuple[int, ...] | None]:
        """The best of the stages between bands, and what the slowest of them takes."""
        bands = self._bands(stages)
        if any(first > last for first, last in bands):
            return np.inf, None
        best = np.zeros(1)
        cuts: list[NDArray[np.intp]] = []
        for stage, (starts, ends) in enumerate(pairwise(bands)):
            check_time()
            best, cut = self._stage(stage, starts, ends, best)
            cuts.append(cut)
        if not np.isfinite(best[0]):
            return np.inf, None
        bounds = [bands[-1].last]
        for ends, cut in reversed([*zip(bands[1:], cuts, strict=True)]):
            bounds.append(int(cut[bounds[-1] - ends.first]))
        return float(best[0]), tuple(reversed(bounds))

    def _stage(
        self, stage: int, starts: Band, ends: Band, best: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """By where a stage ends, what the slowest of the stages up to it takes, and where it
        begins. ``best``: what the slowest of those before it takes, by where it begins."""
        count = len(ends.positions)
        least, cut = np.full(count, np.inf), np.zeros(count, np.intp)
        for some in self._parts(starts, ends):
            check_time()
            reach = Band(max(some.first + 1, ends.first), min(self._last(stage, some), ends.last))
            before = best[some.first - starts.first : some.last - starts.first + 1]
            if reach.first > reach.last or not np.isfinite(before).any():
                continue
            own = self.seconds(stage, some, reach)
            if self.memory is not None:
                own = np.where(self.memory.allowed(stage, some, reach), own, np.inf)
            slowest = np.maximum(before[:, None], own)
            places, into = slowest.argmin(axis=0), reach.positions - ends.first
            lowest = slowest.min(axis=0)
            into, is_less = into[lowest < least[into]], lowest < least[into]
            least[into], cut[into] = lowest[is_less], some.first + places[is_less]
        return least, cut

    def _parts(self, starts: Band, ends: Band) -> Iterator[Band]:
        """Positions where stages begin, such that tables stay small."""
        if len(starts.positions) * len(ends.positions) <= LARGEST:
            yield starts
            return
        for first in range(starts.first, starts.last + 1, PART):
            yield Band(first, min(first + PART - 1, starts.last))

    def _last(self, stage: int, starts: Band) -> int:
        """Where a stage ends at the latest that begins at one of some positions."""
        most = self.before[starts.last] + self.bound + ROUNDING * self.before[-1]
        last = int(np.searchsorted(self.before, most, side="right")) - 1
        return last if self.memory is None else min(last, self.memory.last(stage, starts.last))

    def _bands(self, stages: int) -> list[Band]:
        """Where the cuts lie: the first at the begin, the last at the end of the row."""
        bands = _bands(self.before, stages, self.bound)
        fitting = None if self.memory is None else self.memory.bands
        return bands if fitting is None else [a.has(b) for a, b in zip(bands, fitting, strict=True)]


def _bands(before: NDArray[np.float64], stages: int, bound: float) -> list[Band]:
    """Where the cuts lie if no stage takes more than a bound."""
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
