"""Stages of a pipeline: a sequence of operators, cut so that the slowest stage takes least time.

If stages have several chunks, the sequence is cut into chunks in the same way.

Problem: cut a sequence of n operators into stages. The time of a stage is the sum of the times of
its operators, and of the tensors that it receives and sends. Data flows only forward in the order
of the operators, so every cut of the sequence is legal.

Method: dynamic programming over the ends of stages (as in PipeDream, SOSP 2019). Suppose that no
stage takes longer than some bound. Then all operators before a cut take at most as many bounds as
there are stages before it, and those after it as many as there are stages after it. The same holds
for the memory of stages. So in a deep model each cut lies in a band. Only stages between two bands
are considered that are within the bound and fit in memory. If the best result takes longer than the
bound, a larger bound is tried, but none larger than that result; otherwise no other result is
faster. Stages that are filled one after the other up to a bound give the first such result. Exact
for the given times.

Complexity: the stages, times the width of a band, times the operators of a stage. The width of a
band is about the part of n by which the bound exceeds the mean. Where bands overlap, the times are
computed once for all stages of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcg.plan.pipeline import under_way
from search.cost.progress import check_time

FEW = 500
"""The number of operators up to which all stages are considered at once."""
SLACK = (0.02, 0.1, 0.5, 2.0, np.inf)
"""The bounds that are tried one after the other: the fractions by which the slowest stage may take
longer than its lower bound."""
CLOSE = 3.0
"""An upper bound is tried at once if it exceeds the lower bound by less than this many times the
fraction that would be tried."""
GREEDY_SLACK = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""The fractions by which stages that are filled one after the other may exceed the lower bound."""
BISECTIONS = 3
"""How often the least such fraction is looked for between two of them."""
LARGEST = FEW * FEW
"""The largest table of stages that is made at once. A larger one is made in parts, many of which
are not needed."""
PART = 64
"""The number of first positions of stages in such a part."""
OVERLAP = 2
"""How many times a position lies in bands on average, for each kind of stage, if stages of a kind
share tables."""
MOST_SHARED = 1 << 25
"""The most entries of all shared tables."""
ROUNDING = 1e-9
"""The relative difference of sums in another order."""

StageTable = NDArray[np.float64]
"""[i, j]: a number for the stage that begins at the i-th position of one band and ends before the
j-th position of another; infinite if it has no operator."""


class Band(NamedTuple):
    """Positions in the sequence of operators at which a stage may begin or end. Both ends are
    included."""

    first: int
    last: int

    @property
    def positions(self) -> NDArray[np.intp]:
        return np.arange(self.first, self.last + 1)

    def intersection(self, other: Band) -> Band:
        """The positions in both bands."""
        return Band(max(self.first, other.first), min(self.last, other.last))


StageCosts = Callable[[Band, Band], StageTable]
"""A function from bands of first and last positions to the costs of the stages between."""


def sums(values: Sequence[float] | NDArray[np.float64]) -> StageCosts:
    """The sum of values over the operators of a stage."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])

    def between(starts: Band, ends: Band) -> StageTable:
        table = total[None, ends.positions] - total[starts.positions, None]
        return np.where(legal(starts, ends), table, np.inf)

    return between


def legal(starts: Band, ends: Band) -> NDArray[np.bool_]:
    """Whether a stage has an operator."""
    return starts.positions[:, None] < ends.positions[None, :]


@dataclass(frozen=True, eq=False)
class OperatorBytes:
    """The memory of consecutive operators on devices of one kind. ``weights`` and ``activations``
    (of one micro-batch): bytes of each."""

    weights: NDArray[np.float64]
    activations: NDArray[np.float64]

    def held(self, flying: float, starts: Band, ends: Band) -> StageTable:
        """The bytes of chunks. ``flying``: the micro-batches that each holds."""
        weights, activations = self._tables
        return weights(starts, ends) + flying * activations(starts, ends)

    def each(self, flying: float) -> NDArray[np.float64]:
        """The bytes of each operator."""
        return self.weights + flying * self.activations

    def totals(self, flying: float) -> NDArray[np.float64]:
        """The bytes of the operators before each position."""
        if flying not in self._known:
            self._known[flying] = np.concatenate([[0.0], np.cumsum(self.each(flying))])
        return self._known[flying]

    @cached_property
    def _tables(self) -> tuple[StageCosts, StageCosts]:
        return sums(self.weights), sums(self.activations)

    @cached_property
    def _known(self) -> dict[float, NDArray[np.float64]]:
        return {}


@dataclass(frozen=True, eq=False)
class ChunkMemory:
    """The memory of consecutive chunks. ``operators``: their memory on the devices of each stage;
    ``limits``: the available bytes of each stage; either has one entry if all stages are alike.
    ``flights``: see ``in_flight``."""

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
        """The last end of a chunk that begins at a position and fits, up to rounding."""
        total = self._on(number).totals(self.flights[number])
        most = total[start] + self._limit(number) + ROUNDING * total[-1]
        return int(np.searchsorted(total, most, side="right")) - 1

    def first(self, number: int, end: int) -> int:
        """The first begin of a chunk that ends at a position and fits."""
        total = self._on(number).totals(self.flights[number])
        return int(np.searchsorted(total, total[end] - self._limit(number) - ROUNDING * total[-1]))

    @cached_property
    def bands(self) -> list[Band] | None:
        """The bands of the cuts if all chunks fit; None if they cannot."""
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
    """The number of micro-batches that each chunk holds when its stage holds most, in the order in
    which data flows. Early stages hold more. For a stage with several chunks it is their mean."""
    most = [under_way(s, stages, micro_batches, interleave) / interleave for s in range(stages)]
    return most * interleave


def balanced(
    seconds: Callable[[int, Band, Band], StageTable],
    least: Sequence[float] | NDArray[np.float64],
    stages: int,
    memory: ChunkMemory | None = None,
    kind: Callable[[int], Hashable] = int,
) -> tuple[int, ...] | None:
    """The bounds of the stages, from 0 to the number of operators, with the fastest slowest stage.
    None if no stages fit in memory. ``seconds``: the table of each stage, numbered from 0;
    ``least``: a lower bound of what each operator adds to any stage, at least 0; ``memory``: the
    memory of stages, unlimited by default; ``kind``: a key, equal for stages with equal tables."""
    before = np.concatenate([[0.0], np.cumsum(np.asarray(least, np.float64))])
    if memory is not None and memory.bands is None:
        return None
    if len(least) <= FEW:
        return _RowCut(seconds, before, memory, kind, np.inf).best(stages)[1]
    most = max(before[-1] / stages, np.max(least, initial=0.0))
    row_cut = partial(_RowCut, seconds, before, memory, kind)
    known = _greedy(row_cut, most, stages)
    for slack in SLACK:
        # An earlier result is no less than the best.
        bound = min(known, most * (1.0 + slack) if np.isfinite(slack) else np.inf)
        if bound < known < most * (1.0 + CLOSE * slack):
            bound = known
        slowest, bounds = row_cut(bound).best(stages)
        if bounds is not None and slowest <= bound:
            return bounds
        known = min(known, slowest)
    return None


def _greedy(row_cut: Callable[[float], _RowCut], most: float, stages: int) -> float:
    """The time of the slowest of some stages, which is an upper bound of the best; infinite if none
    are found. ``row_cut``: the sequence to be cut, by a bound; ``most``: a lower bound."""
    low, high, known = 0.0, 0.0, np.inf
    for high in GREEDY_SLACK:
        known = row_cut(most * (1.0 + high)).greedy(stages)
        if np.isfinite(known):
            break
        low = high
    else:
        return known
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        found = row_cut(most * (1.0 + middle)).greedy(stages)
        low, high = (low, middle) if np.isfinite(found) else (middle, high)
        known = min(known, found)
    return known


@dataclass(frozen=True, eq=False)
class _RowCut:
    """A sequence to be cut such that no stage takes longer than a bound. ``before``: the sum of
    ``least`` over the operators before each position; other fields as in ``balanced``."""

    seconds: Callable[[int, Band, Band], StageTable]
    before: NDArray[np.float64]
    memory: ChunkMemory | None
    kind: Callable[[int], Hashable]
    bound: float
    _blocks: dict[tuple[Hashable, int], StageTable] = field(
        init=False, default_factory=dict[tuple[Hashable, int], StageTable]
    )
    """The tables that stages of a kind share, by the number of their first positions' part."""

    def best(self, stages: int) -> tuple[float, tuple[int, ...] | None]:
        """The time of the slowest stage, and the bounds, of the best stages between the bands."""
        bands = self._bands(stages)
        if any(first > last for first, last in bands):
            return np.inf, None
        best = np.zeros(1)
        cuts: list[NDArray[np.intp]] = []
        shared = self._shares(bands)
        for stage, (starts, ends) in enumerate(pairwise(bands)):
            check_time()
            best, cut = self._stage(stage, starts, ends, best, shared=shared)
            cuts.append(cut)
        if not np.isfinite(best[0]):
            return np.inf, None
        bounds = [bands[-1].last]
        for ends, cut in reversed([*zip(bands[1:], cuts, strict=True)]):
            bounds.append(int(cut[bounds[-1] - ends.first]))
        return float(best[0]), tuple(reversed(bounds))

    def greedy(self, stages: int) -> float:
        """The time of the slowest stage if each takes as many operators as are within the bound;
        infinite if these are not all operators."""
        count, begin, slowest = len(self.before) - 1, 0, 0.0
        for stage in range(stages):
            start, later = Band(begin, begin), stages - 1 - stage
            reach = Band(
                begin + 1 if later else count, min(self._last(stage, start), count - later)
            )
            if reach.first > reach.last:
                return np.inf
            seconds = self._seconds(stage, start, reach, shared=False)[0]
            within = np.flatnonzero(seconds <= self.bound)
            if not len(within):
                return np.inf
            begin, slowest = reach.first + int(within[-1]), max(slowest, seconds[within[-1]])
        return float(slowest)

    def _shares(self, bands: Sequence[Band]) -> bool:
        """Whether stages of a kind share their tables: if their bands overlap, and if the tables
        are not too large."""
        if not np.isfinite(self.bound):
            return False
        count, kinds = len(self.before) - 1, len({self.kind(i) for i in range(len(bands) - 1)})
        width = sum(len(band.positions) for band in bands)
        longest = max(len(self._columns(k).positions) for k in range(count // PART + 1))
        return width > OVERLAP * kinds * count and kinds * count * longest <= MOST_SHARED

    def _rows(self, part: int) -> Band:
        """The positions of a part."""
        return Band(part * PART, min((part + 1) * PART, len(self.before)) - 1)

    def _columns(self, part: int) -> Band:
        """The ends of stages that begin in a part, if time is the only bound."""
        return Band(part * PART + 1, self._last_in_time(self._rows(part).last))

    def _seconds(self, stage: int, starts: Band, ends: Band, *, shared: bool) -> StageTable:
        """The seconds of a stage, infinite where it does not fit. ``shared``: whether its table is
        a part of one that stages of a kind share."""
        table = self._part(stage, starts, ends) if shared else self.seconds(stage, starts, ends)
        longest = Band(starts.first, starts.first), Band(ends.last, ends.last)
        if self.memory is None or self.memory.allowed(stage, *longest)[0, 0]:
            return table
        return np.where(self.memory.allowed(stage, starts, ends), table, np.inf)

    def _part(self, stage: int, starts: Band, ends: Band) -> StageTable:
        """The seconds of a stage, as a part of a table that is made once for stages of a kind."""
        part = starts.first // PART
        key, columns = (self.kind(stage), part), self._columns(part)
        if key not in self._blocks:
            self._blocks[key] = self.seconds(stage, self._rows(part), columns)
        top, left = starts.first - part * PART, ends.first - columns.first
        bottom, right = starts.last - part * PART, ends.last - columns.first
        return self._blocks[key][top : bottom + 1, left : right + 1]

    def _stage(
        self, stage: int, starts: Band, ends: Band, best: NDArray[np.float64], *, shared: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """For each end of a stage, the time of the slowest stage up to it, and where it begins.
        ``best``: the time of the slowest stage before it, by where it begins; ``shared``: see
        ``_seconds``."""
        count = len(ends.positions)
        least, cut = np.full(count, np.inf), np.zeros(count, np.intp)
        for part in _parts(starts, ends, shared=shared):
            check_time()
            reach = Band(max(part.first + 1, ends.first), min(self._last(stage, part), ends.last))
            before = best[part.first - starts.first : part.last - starts.first + 1]
            if reach.first > reach.last or not np.isfinite(before).any():
                continue
            slowest = np.maximum(before[:, None], self._seconds(stage, part, reach, shared=shared))
            places, into = slowest.argmin(axis=0), reach.positions - ends.first
            lowest = slowest.min(axis=0)
            into, is_less = into[lowest < least[into]], lowest < least[into]
            least[into], cut[into] = lowest[is_less], part.first + places[is_less]
        return least, cut

    def _last(self, stage: int, starts: Band) -> int:
        """The last end of a stage that begins at one of some positions."""
        last = self._last_in_time(starts.last)
        return last if self.memory is None else min(last, self.memory.last(stage, starts.last))

    def _last_in_time(self, start: int) -> int:
        """The last end of a stage that begins at a position, if time is the only bound."""
        most = self.before[start] + self.bound + ROUNDING * self.before[-1]
        return int(np.searchsorted(self.before, most, side="right")) - 1

    def _bands(self, stages: int) -> list[Band]:
        """The bands of the cuts. The first is the begin of the sequence, the last is its end."""
        bands = _bands(self.before, stages, self.bound)
        fitting = None if self.memory is None else self.memory.bands
        if fitting is None:
            return bands
        return [a.intersection(b) for a, b in zip(bands, fitting, strict=True)]


def _parts(starts: Band, ends: Band, *, shared: bool) -> Iterator[Band]:
    """The first positions of stages in parts, so that tables stay small. Shared tables begin at
    multiples of ``PART``."""
    if not shared and len(starts.positions) * len(ends.positions) <= LARGEST:
        yield starts
        return
    first = starts.first
    while first <= starts.last:
        end = (first // PART + 1) * PART if shared else first + PART
        yield Band(first, min(end - 1, starts.last))
        first = end


def _bands(before: NDArray[np.float64], stages: int, bound: float) -> list[Band]:
    """The bands of the cuts if no stage takes longer than a bound."""
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
