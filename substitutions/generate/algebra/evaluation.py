"""Evaluates the terms of a table over the values of its classes, many terms at a time.

A class has few terms, so numpy calls for single classes would cost more than the work in them. So
the terms of one operator are evaluated together, whatever the classes of their operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from substitutions.generate.algebra.prime_field import Shape
from substitutions.generate.algebra.terms import ORDERS, Hasher, TermBatch, TermValues, renaming
from substitutions.generate.algebra.worlds import ShapedOutput

ROWS = 1 << 15
"""The most rows (terms times orders) that are evaluated at once."""

BatchRows = tuple[TermBatch, range]
"""A range of terms of a batch."""
ClassNumbers = NDArray[np.integer[Any]]

_renaming = lru_cache(maxsize=None)(renaming)
_SAME = np.arange(len(ORDERS))


@dataclass(frozen=True)
class EvaluatedTerms:
    """A range of terms of a batch with their values, of shape (terms, orders, elements), and
    hashes, of shape (terms, orders)."""

    batch: TermBatch
    rows: range
    values: NDArray[np.int64]
    hashes: NDArray[np.uint64]


class Evaluation:
    """The values of classes, numbered in the order of ``append``, and of terms over them."""

    def __init__(self, steps: Sequence[ShapedOutput], hasher: Hasher) -> None:
        self._steps, self._hasher = steps, hasher
        self._places: list[int] = []
        self._counts: dict[Shape, int] = {}
        self._stacks: dict[Shape, TermValues] = {}
        self._fresh: dict[Shape, list[TermValues]] = {}

    def append(self, shape: Shape, values: TermValues) -> None:
        """Add the values of the next class, of shape (orders, elements)."""
        place = self._counts.get(shape, 0)
        self._counts[shape] = place + 1
        self._places.append(place)
        self._fresh.setdefault(shape, []).append(values)

    def of(self, batches: Iterable[TermBatch]) -> Iterator[EvaluatedTerms]:
        """Yield the values of the terms of the batches over the classes added so far."""
        self._stack()
        places = np.array(self._places, np.intp)
        for pieces in _together(batches):
            yield from self._evaluated(pieces, places)

    def _stack(self) -> None:
        for shape, values in self._fresh.items():
            known = [self._stacks[shape]] if shape in self._stacks else []
            self._stacks[shape] = np.concatenate([*known, np.stack(values)])
        self._fresh.clear()

    def _evaluated(
        self, pieces: Sequence[BatchRows], places: ClassNumbers
    ) -> Iterator[EvaluatedTerms]:
        step = self._steps[pieces[0][0].step]
        count = sum(len(rows) for _, rows in pieces)
        operands = [
            self._operand(pieces, position, places[numbers], shape)
            for position, (numbers, shape) in enumerate(
                zip(_operands(pieces), step.inputs, strict=True)
            )
        ]
        results = step.evaluate(operands)
        flat = np.broadcast_to(results, (count * len(ORDERS), results.shape[1]))
        hashes = self._hasher.hashes(flat, step.shape).reshape(count, len(ORDERS))
        values = flat.reshape(count, len(ORDERS), -1)
        start = 0
        for batch, rows in pieces:
            own = slice(start, start + len(rows))
            yield EvaluatedTerms(batch, rows, values[own], hashes[own])
            start = own.stop

    def _operand(
        self, pieces: Sequence[BatchRows], position: int, places: ClassNumbers, shape: Shape
    ) -> NDArray[np.int64]:
        """The values of one operand of every term, of shape (rows, elements), with the operand's
        variables renamed as in the term."""
        stack = self._stacks[shape]
        renamed = [batch.second is not None and position != batch.swapped for batch, _ in pieces]
        if any(renamed):
            orders = np.stack(
                [
                    _renaming(batch.names) if other else _SAME
                    for (batch, _), other in zip(pieces, renamed, strict=True)
                ]
            )
            counts = [len(rows) for _, rows in pieces]
            values = stack[places[:, None], np.repeat(orders, counts, axis=0)]
        else:
            values = stack[places]
        return values.reshape(-1, stack.shape[-1]).astype(np.int64)


def _together(batches: Iterable[TermBatch]) -> Iterator[list[BatchRows]]:
    """Yield consecutive batches of the same operator together, up to the number of terms that are
    evaluated at once."""
    most = ROWS // len(ORDERS)
    pieces: list[BatchRows] = []
    room = most
    for batch in batches:
        if pieces and pieces[0][0].step != batch.step:
            yield pieces
            pieces, room = [], most
        start = 0
        while start < batch.terms:
            rows = range(start, min(start + room, batch.terms))
            pieces.append((batch, rows))
            room, start = room - len(rows), rows.stop
            if not room:
                yield pieces
                pieces, room = [], most
    if pieces:
        yield pieces


def _operands(pieces: Sequence[BatchRows]) -> list[ClassNumbers]:
    """The classes of each operand of the terms, in order."""
    columns = [_classes(batch, rows) for batch, rows in pieces]
    return [np.concatenate(column) for column in zip(*columns, strict=True)]


def _classes(batch: TermBatch, rows: range) -> tuple[ClassNumbers, ...]:
    if batch.first is None:
        return ()
    if batch.second is None:
        return (batch.first[rows.start : rows.stop],)
    if batch.cross:
        first, second = np.divmod(np.arange(rows.start, rows.stop), len(batch.second))
        pair = batch.first[first], batch.second[second]
    else:
        pair = batch.first[rows.start : rows.stop], batch.second[rows.start : rows.stop]
    return pair[::-1] if batch.swapped else pair
