"""Repeated blocks of a sequence, such as the layers of a transformer.

Problem: find where a sequence repeats a block several times in a row, so that one can be shown for
all. Method: for each block length, find the longest run of places that equal the place one length
ahead. Take the repetition that leaves out the most places. Treat the parts before and after it in
the same way. Complexity: quadratic in the length, in numpy. Greedy: another choice may leave out
more places in total.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_SAVED = 4
"""A repetition that leaves out fewer places is not folded."""
MOST = 6000
"""Longer sequences are not folded, since that would take too long."""


@dataclass(frozen=True)
class Repetition:
    """A block of ``length`` places that occurs ``times`` times in a row, from ``start`` on."""

    start: int
    length: int
    times: int

    @property
    def stop(self) -> int:
        return self.start + self.length * self.times

    @property
    def saved(self) -> int:
        """The number of places that need not be shown."""
        return self.length * (self.times - 1)


def repetitions(keys: Sequence[Hashable]) -> list[Repetition]:
    """The repeated blocks of a sequence, in order and without overlap."""
    numbers: dict[Hashable, int] = {}
    sequence = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    repeated: list[Repetition] = []
    pending = [(0, len(sequence))] if len(sequence) <= MOST else []
    while pending:
        first, last = pending.pop()
        best = _best(sequence[first:last])
        if best is None:
            continue
        repetition = Repetition(first + best.start, best.length, best.times)
        repeated.append(repetition)
        pending += [(first, repetition.start), (repetition.stop, last)]
    return sorted(repeated, key=lambda repetition: repetition.start)


def _best(sequence: NDArray[np.int64]) -> Repetition | None:
    best: Repetition | None = None
    for length in range(1, len(sequence) // 2 + 1):
        start, run = _longest_run(sequence[:-length] == sequence[length:])
        repetition = Repetition(start, length, run // length + 1)
        if repetition.saved >= LEAST_SAVED and (best is None or repetition.saved > best.saved):
            best = repetition
    return best


def _longest_run(equal: NDArray[np.bool_]) -> tuple[int, int]:
    """The start and the length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], equal.view(np.int8), [0]])))
    if not len(edges):
        return 0, 0
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    at = int(lengths.argmax())
    return int(starts[at]), int(lengths[at])


def shown_for(keys: Sequence[Hashable]) -> list[tuple[int, int]]:
    """For each place of a sequence: the place that is shown for it, which is itself or one of the
    first block; and the number of places for which that one stands."""
    places = [(place, 1) for place in range(len(keys))]
    for repetition in repetitions(keys):
        for place in range(repetition.start, repetition.stop):
            places[place] = (
                repetition.start + (place - repetition.start) % repetition.length,
                repetition.times,
            )
    return places
