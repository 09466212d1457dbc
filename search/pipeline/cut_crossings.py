"""The seconds that stages spend on tensors that cross the cuts between them.

Problem: the time of every stage between two bands of cuts, for the tensors that it receives and
sends. Method: few tensors cross a cut, each from its maker to its first reader after the cut. So
they are compared with all stages one by one. Complexity: the stages, times the tensors that cross a
cut. Exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search.pipeline.balance import Band, StageTable, legal


@dataclass(frozen=True)
class Crossing:
    """A tensor that may cross from one stage to others: the number of its maker, those of its
    readers (ascending), and the seconds a step of sending it, at each end."""

    maker: int
    readers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, eq=False)
class CrossingSeconds:
    """The seconds that stages spend on tensors from earlier stages and to later ones. A received
    tensor counts once. A sent tensor counts once, however many stages receive it."""

    crossings: Sequence[Crossing]

    @cached_property
    def _read(self) -> _RunningSums:
        """For each cut, the tensors that cross it, in the order of their first readers after it."""
        return _RunningSums.of(self._at, self._at.readers)

    @cached_property
    def _made(self) -> _RunningSums:
        """For each cut, the tensors that cross it, the last made first. Places count backwards."""
        return _RunningSums.of(self._at, self._at.end - self._at.makers)

    @cached_property
    def _at(self) -> _CutCrossings:
        return _CutCrossings.of(self.crossings)

    def received(self, starts: Band, ends: Band) -> StageTable:
        """The seconds of receiving: tensors that cross the begin of a stage and are first read
        before its end."""
        table = self._read.before(starts.positions[:, None], ends.positions[None, :])
        return np.where(legal(starts, ends), table, np.inf)

    def sent(self, starts: Band, ends: Band) -> StageTable:
        """The seconds of sending: tensors that cross the end of a stage and are made in it."""
        backwards = self._at.end + 1 - starts.positions
        table = self._made.before(ends.positions[None, :], backwards[:, None])
        return np.where(legal(starts, ends), table, np.inf)


class _CutCrossings(NamedTuple):
    """The tensors that cross each cut of a sequence, one entry for each cut and tensor: the
    position of the cut, the maker of the tensor, its first reader after the cut, and its
    seconds."""

    cuts: NDArray[np.intp]
    makers: NDArray[np.intp]
    readers: NDArray[np.intp]
    seconds: NDArray[np.float64]
    end: int
    """A position after all cuts that are crossed."""

    @staticmethod
    def of(crossings: Sequence[Crossing]) -> _CutCrossings:
        makers = np.array([c.maker for c in crossings], np.intp)
        lengths = np.array([c.readers[-1] - c.maker for c in crossings], np.intp)
        cuts = [np.arange(c.maker + 1, c.readers[-1] + 1) for c in crossings]
        readers = [
            np.asarray(c.readers)[np.searchsorted(c.readers, positions)]
            for c, positions in zip(crossings, cuts, strict=True)
        ]
        none = np.zeros(0, np.intp)
        end = max((c.readers[-1] for c in crossings), default=0) + 1
        return _CutCrossings(
            np.concatenate([none, *cuts]),
            np.repeat(makers, lengths),
            np.concatenate([none, *readers]),
            np.repeat([float(c.seconds) for c in crossings], lengths),
            end,
        )


class _RunningSums(NamedTuple):
    """The running sums of the tensors that cross each cut, in the order of their places. A cut is
    crossed by few tensors, so these are compared one by one."""

    places: NDArray[np.intp]
    """[tensors, cuts]: their places, ascending."""
    seconds: NDArray[np.float64]
    """[tensors, cuts]: their seconds, 0 after the last tensor of a cut."""

    @staticmethod
    def of(at: _CutCrossings, places: NDArray[np.intp]) -> _RunningSums:
        order = np.lexsort((places, at.cuts))
        cuts = at.cuts[order]
        number = np.arange(len(cuts)) - np.searchsorted(cuts, cuts)
        # No tensor crosses the last cut, which stands for all cuts after it.
        shape = int(number.max(initial=-1)) + 1, at.end + 1
        where, seconds = np.zeros(shape, np.intp), np.zeros(shape)
        where[number, cuts], seconds[number, cuts] = places[order], at.seconds[order]
        return _RunningSums(where, seconds)

    def before(self, cuts: NDArray[np.intp], places: NDArray[np.intp]) -> StageTable:
        """The sum of the seconds before a place of a cut, for all pairs."""
        cuts = np.minimum(cuts, self.seconds.shape[1] - 1)
        total = np.zeros(np.broadcast_shapes(cuts.shape, places.shape))
        for own, seconds in zip(self.places, self.seconds, strict=True):
            total += np.where(own[cuts] < places, seconds[cuts], 0.0)
        return total
