"""Stages of a pipeline: operators in a row, cut so that the slowest stage takes least time.

The operators keep an order in which data flows forward only, so every cut of the row is legal. The
partition is by dynamic programming over the ends of stages (as in PipeDream, SOSP 2019), exact for
the table of times that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.pipeline.clock import in_flight

StageTable = NDArray[np.float64]
"""[i, j]: of a stage of the operators i to j - 1, for 0 <= i < j <= n; elsewhere infinite."""


@dataclass(frozen=True)
class Crossing:
    """A tensor that may cross from one stage to others: who makes it, who reads it (ascending),
    and the seconds a step that sending it takes at each end."""

    maker: int
    readers: tuple[int, ...]
    seconds: float


def sums(values: Sequence[float] | StageTable) -> StageTable:
    """A stage's sum over its operators."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    table = total[None, :] - total[:, None]
    return np.where(_legal(len(total)), table, np.inf)


def crossing_seconds(count: int, crossings: Sequence[Crossing]) -> tuple[StageTable, StageTable]:
    """What a stage spends on tensors that come from stages before, and on those that go to later
    ones. A tensor that comes is received once; one that goes is counted once, however many stages
    it goes to."""
    comes, goes = np.zeros((2, count + 1, count + 1))
    for c in crossings:
        starts = np.arange(c.maker + 1, c.readers[-1] + 1)
        first = np.array(c.readers)[np.searchsorted(c.readers, starts)]
        for start, reader in zip(starts, first, strict=True):
            comes[start, reader + 1 :] += c.seconds
        goes[: c.maker + 1, c.maker + 1 : c.readers[-1] + 1] += c.seconds
    legal = _legal(count + 1)
    return np.where(legal, comes, np.inf), np.where(legal, goes, np.inf)


def _legal(size: int) -> NDArray[np.bool_]:
    return np.arange(size)[:, None] < np.arange(size)[None, :]


def fits(
    weights: StageTable, activations: StageTable, limit: float, stages: int, micro_batches: int
) -> Callable[[int], NDArray[np.bool_]]:
    """Which stages fit the memory of a device, as a function of the stage's number: early ones
    hold more micro-batches. ``weights`` and ``activations`` (of one micro-batch) are bytes."""

    def allowed(stage: int) -> NDArray[np.bool_]:
        return weights + in_flight(stage, stages, micro_batches) * activations <= limit

    return allowed


def balanced(
    seconds: Callable[[int], StageTable],
    stages: int,
    allowed: Callable[[int], NDArray[np.bool_]] | None = None,
) -> tuple[int, ...] | None:
    """The bounds of the stages, from 0 to the number of operators, for which the slowest stage
    takes least; None where there are none that are ``allowed``. ``seconds`` and ``allowed`` are
    tables for each stage, which is numbered from 0."""
    count = len(seconds(0)) - 1
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    cuts: list[NDArray[np.intp]] = []
    for stage in range(stages):
        own = seconds(stage)
        if allowed is not None:
            own = np.where(allowed(stage), own, np.inf)
        slowest = np.maximum(best[:, None], own)
        cuts.append(slowest.argmin(axis=0))
        best = slowest.min(axis=0)
    if not np.isfinite(best[count]):
        return None
    bounds = [count]
    for cut in reversed(cuts):
        bounds.append(int(cut[bounds[-1]]))
    return tuple(reversed(bounds))
