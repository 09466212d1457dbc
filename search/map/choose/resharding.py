"""Resharding cost between every pair of placements, in one table.

The costs are estimates. Messages count by the bytes that a device receives, over the mean link to
the devices that these may come from. Collectives count as rings. For each transfer, the seconds are
the least of a few lines in the bytes of the tensor. A machine has few different sets of lines.
Which set a pair of placements takes depends on neither the size nor the rank of the tensor, so each
pair is looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pcg.memo import Memo
from search.cost.collectives import Lines, padded, seconds
from search.map.choose.factors import PairTable, Places
from search.map.choose.key_numbers import KeyNumbers, Keys
from search.map.space.axes import Mesh, Seconds
from search.map.space.strategies import IDLE, PARTIAL, REPLICATE, Placements

_NOTHING, _MESSAGES, _PASSES, _REDUCES, _NEVER = range(5)
"""The kinds of transfer: nothing moves; messages; one all_gather or reduce_scatter; one all_reduce;
impossible, since only operators make partial sums."""

NEVER = 1e3
"""Seconds of a transfer that is impossible: more than those of any step."""

_Key = tuple[float, ...]
"""The kind of a transfer, the set of its mesh axes, the fraction of the tensor's bytes that counts,
and the number of messages."""


PairSeconds = NDArray[np.float32]

Bits = NDArray[np.int32]
"""Sets of mesh axes."""

_Number = TypeVar("_Number", np.int32, np.float64)

MOST_PAIRS = 1 << 16
"""Pairs of placements that are compared at once. A larger number would take more memory."""


@dataclass
class Transfers:
    """The transfers between placements on the devices of a mesh. Each pair is worked out once."""

    mesh: Mesh
    _placements: dict[bytes, int] = field(init=False, default_factory=dict[bytes, int])
    _keys: KeyNumbers = field(init=False, default_factory=KeyNumbers)
    _lines: list[Lines] = field(init=False, default_factory=list[Lines])
    _padded: Lines = field(init=False, default_factory=lambda: padded(()))
    _tables: Memo[object, PairTable] = field(init=False, default_factory=Memo[object, PairTable])
    _table: NDArray[np.uint16 | np.uint32] = field(init=False)
    """[placements, placements]: the number of the lines of each pair, counted from 1; 0 if it is
    not known yet. Zeros take no memory before they are written, and few of the pairs are asked
    for."""

    def __post_init__(self) -> None:
        self._table = np.zeros((64, 64), np.uint16)

    def seconds(self, sources: Placements, targets: Placements, volume: float) -> PairTable:
        """Seconds of each transfer of a tensor of ``volume`` bytes. Equal tables are one object."""
        if not sources.shape[1]:  # there is one device
            return PairTable.of(np.zeros((len(sources), len(targets)), np.float32))
        # Strategies that differ only in indices that the tensor lacks leave it in one placement.
        (a, first, source), (b, other, target) = (self._numbers(c) for c in (sources, targets))
        key = (volume, *(part.tobytes() for part in (a, source, b, target)))

        def table() -> PairTable:
            different = self._between(a, b, sources[first], targets[other], volume)
            return PairTable.of(different.take(source, axis=0).take(target, axis=1))

        return self._tables.get(key, table)

    def forget(self) -> None:
        """Drop the tables of seconds, and keep the numbers of the lines of each pair."""
        self._tables.clear()

    def _between(
        self, a: Places, b: Places, sources: Placements, targets: Placements, volume: float
    ) -> PairSeconds:
        """Seconds between different placements. ``a`` and ``b``: their numbers."""
        numbers = self._table[np.ix_(a, b)]
        if (unknown := numbers == 0).any():
            rows, columns = unknown.any(axis=1), unknown.any(axis=0)
            new = self._line_numbers(sources[rows], targets[columns])
            if len(self._lines) > np.iinfo(self._table.dtype).max:
                self._table = self._table.astype(np.uint32)
            self._table[np.ix_(a[rows], b[columns])] = new
            numbers = self._table[np.ix_(a, b)]
            if len(self._lines) >= len(self._padded):
                self._padded = padded([np.zeros((1, 2)), *self._lines])
        lines = seconds(self._padded, volume).astype(np.float32)
        return lines[numbers]

    def _numbers(self, placements: Placements) -> tuple[Places, Places, Places]:
        """The numbers of the different placements, where new ones get new numbers; the first
        position of each; and for each placement its position among the different ones."""
        content = np.ascontiguousarray(placements).view(f"V{placements.shape[1]}").ravel()
        different, first, inverse = np.unique(content, return_index=True, return_inverse=True)
        known = self._placements
        numbers = [known.setdefault(placement, len(known)) for placement in different.tolist()]
        if len(known) > len(self._table):
            grown = np.zeros_like(self._table, shape=(2 * len(known), 2 * len(known)))
            grown[: len(self._table), : len(self._table)] = self._table
            self._table = grown
        return np.array(numbers, np.intp), first, inverse

    def _line_numbers(self, sources: Placements, targets: Placements) -> NDArray[np.uint32]:
        """The numbers of the lines of all pairs, counted from 1."""
        count = 1 + len(sources) * len(targets) // MOST_PAIRS
        parts = [self._line_numbers_of(part, targets) for part in np.array_split(sources, count)]
        return np.concatenate(parts)

    def _line_numbers_of(self, sources: Placements, targets: Placements) -> NDArray[np.uint32]:
        keys = _keys(sources, targets, np.array(self.mesh.primes))
        return self._keys.numbers(keys, self._number).reshape(len(sources), len(targets))

    def _number(self, key: _Key) -> int:
        """The number of the lines of a transfer whose lines were not asked for before."""
        self._lines.append(self._lines_of(key))
        return len(self._lines)

    def _lines_of(self, key: _Key) -> Lines:
        """The seconds of a transfer, as lines in the bytes of the tensor."""
        kind, axes, part, messages = key
        mask = int(axes)
        if kind == _NOTHING:
            # A device copies data within its own memory. This copy is left out here.
            return np.zeros((1, 2))
        if kind == _NEVER:
            return np.array([(NEVER, 0.0)])
        peers = self.mesh.peers(mask)
        if kind == _MESSAGES:
            latency = peers.latency * min(messages, peers.members - 1)
            return np.array([(latency, peers.inverse_bandwidth * part)])
        return (peers.ring if kind == _PASSES else peers.all_reduce) * (1.0, part)


def _keys(sources: Placements, targets: Placements, primes: NDArray[np.int64]) -> Keys:
    """The key of each transfer (see ``_Key``), as columns of [sources * targets].

    A set of mesh axes is a number whose bits stand for mesh axes, the outermost the lowest. So a
    question about all mesh axes is asked once for each pair.
    """
    rank = max(sources.max(initial=IDLE), targets.max(initial=IDLE)) + 1
    entries = (IDLE, PARTIAL, REPLICATE, *range(rank))
    sets = {entry: _PairedSets.of(sources, targets, entry) for entry in entries}
    product = _products(primes)
    # Where a tensor is copied, every device already has the data that it needs.
    moved = _union(sets[e].each(lambda a, b: a & ~b) for e in entries if e != REPLICATE)
    blocks = _Blocks.of([sets[dim] for dim in range(rank)], product)
    group = sets[PARTIAL].each(lambda a, b: product[a & ~b])
    # Along mesh axes that were idle, one device has the data that all others need.
    asked = sets[IDLE].each(lambda a, b: np.where(a & ~b, 0.0, 1.0))
    served = sets[IDLE].each(lambda a, b: np.maximum(product[a & ~b] / product[b & ~a], 1.0))
    received = np.maximum(blocks.after * group - asked * blocks.both, 0.0)
    mask = moved | blocks.shifted
    plain = (blocks.shifted == 0) & (mask > 0)
    cut_a, cut_b = (_union(sets[dim].ends[side] for dim in range(rank)) for side in (0, 1))
    (a_sums, b_sums), (_, copies) = sets[PARTIAL].ends, sets[REPLICATE].ends
    reduced = (moved & ~a_sums) | (moved & ~copies) == 0
    scattered = (moved & ~a_sums) | (moved & ~cut_b) == 0
    gathered = (moved & ~cut_a) | (moved & ~copies) == 0
    kind = np.full(mask.shape, _MESSAGES)
    kind[plain & (scattered | gathered)] = _PASSES
    kind[plain & reduced] = _REDUCES
    kind[received <= 0] = _NOTHING
    kind[(b_sums > 0) & (a_sums != b_sums)] = _NEVER
    sends = kind == _MESSAGES
    part = np.where(sends, received * served, np.where(gathered, blocks.after, blocks.before))
    messages = np.where(sends, group * blocks.met * served, 0.0)
    moves = (kind > _NOTHING) & (kind < _NEVER)
    columns = kind, np.where(moves, mask, 0), np.where(moves, part, 0.0), messages
    return tuple(column.ravel() for column in columns)


@dataclass(frozen=True)
class _PairedSets:
    """For an entry, the mesh axes with this entry before and after each transfer. Placements have
    few different sets, so a function of both sets is computed for few pairs. ``before`` and
    ``after``: the different sets; ``sources`` and ``targets``: the place of each placement's set
    among them."""

    before: Bits
    after: Bits
    sources: Places
    targets: Places

    @staticmethod
    def of(sources: Placements, targets: Placements, entry: int) -> _PairedSets:
        (a, of_a), (b, of_b) = (
            np.unique(_axes_of(placements, entry), return_inverse=True)
            for placements in (sources, targets)
        )
        return _PairedSets(a, b, of_a, of_b)

    def each(self, function: Callable[[Bits, Bits], NDArray[_Number]]) -> NDArray[_Number]:
        """[sources, targets]: a function of the sets before and after."""
        few = function(self.before[:, None], self.after[None, :])
        return few.take(self.sources, axis=0).take(self.targets, axis=1)

    @property
    def ends(self) -> tuple[Bits, Bits]:
        """[sources, 1] and [1, targets]: the sets before, and those after."""
        return self.before[self.sources][:, None], self.after[self.targets][None, :]


@dataclass(frozen=True)
class _Blocks:
    """The blocks of a tensor before and after each transfer [sources, targets], as fractions of the
    tensor."""

    before: Seconds
    after: Seconds
    both: Seconds
    """The part that a device has in its block before and needs in its block after."""
    met: Seconds
    """The number of blocks before that a block after has elements of."""
    shifted: Bits
    """The mesh axes that cut the same dimension before and after, but at another place."""

    @staticmethod
    def of(dimensions: Sequence[_PairedSets], product: Seconds) -> _Blocks:
        """``dimensions``: for each dimension, the mesh axes that cut it before and after."""

        def cells(a: Bits, b: Bits) -> Seconds:
            # Axes that cut alike before and after count once.
            return product[a] * product[b & ~_alike(a, b)]

        def met(a: Bits, b: Bits) -> Seconds:
            alike = _alike(a, b)
            return np.maximum(product[a & ~alike] / product[b & ~alike], 1.0)

        def shifted(a: Bits, b: Bits) -> Bits:
            return a & b & ~_alike(a, b)

        ends = [tuple(product[own] for own in sets.ends) for sets in dimensions]
        return _Blocks(
            1.0 / _multiplied(before for before, _ in ends),
            1.0 / _multiplied(after for _, after in ends),
            1.0 / _multiplied(sets.each(cells) for sets in dimensions),
            _multiplied(sets.each(met) for sets in dimensions),
            _union(sets.each(shifted) for sets in dimensions),
        )


def _axes_of(placements: Placements, entry: int) -> Bits:
    """[placements]: the mesh axes along which each placement has an entry."""
    return ((placements == entry) @ (1 << np.arange(placements.shape[1]))).astype(np.int32)


def _union(sets: Iterable[Bits]) -> Bits:
    return reduce(np.bitwise_or, sets, np.zeros((1, 1), np.int32))


def _multiplied(factors: Iterable[Seconds]) -> Seconds:
    return reduce(np.multiply, factors, np.ones((1, 1)))


def _products(primes: NDArray[np.int64]) -> Seconds:
    """For each set of mesh axes, the product of their primes."""
    products = np.ones(1)
    for prime in primes:
        products = np.concatenate([products, products * prime])
    return products


def _alike(a: Bits, b: Bits) -> Bits:
    """The mesh axes further out than all that are in one of two sets only; all mesh axes if the
    sets are equal."""
    different = a ^ b
    return (different & -different) - 1
