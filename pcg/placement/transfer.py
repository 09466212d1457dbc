"""Transfers: the data movement between two layouts of a tensor, for a chain of parallel operators.

Partition, combine, replicate and reduce change how a tensor lies and never what it means, so a
chain of them between two operators is one linear map from pieces to pieces: the piece of a device
afterwards is the sum, over the partials that were reduced, of the blocks that it covers. The same
description serves the cost model and the runtime; its adjoint is the map read backwards.

A regular transfer is a collective. Which one it is follows from the pieces: reduce and replicate is
an all_reduce, combine and replicate an all_gather, reduce and partition a reduce_scatter, combine
and partition along other dimensions an all_to_all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product
from math import prod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcg.placement.layout import Cells, Layout, Piece
from pcg.placement.region import Region, elements, intersection


@dataclass(frozen=True)
class Message:
    """``region`` of partial ``partial`` of the source, from one device to another (or the same)."""

    source: int
    target: int
    region: Region

    @property
    def elements(self) -> int:
        return elements(self.region)


class Flows(NamedTuple):
    """The messages of a transfer as arrays [messages]: by the piece that is wanted, in the order of
    the target's pieces, then by the pieces that it comes from."""

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    elements: NDArray[np.int64]
    wanted: NDArray[np.intp]
    """The number of the target's piece."""
    pieces: NDArray[np.intp]
    """The number of a piece of the source that is what is sent."""


TransferKind = Literal["none", "local", "all_reduce", "all_gather", "reduce_scatter", "messages"]
"""What a transfer is: nothing moves; each device copies what it has; a collective; or messages, of
which some sets are an all_to_all (``Transfer.swaps``)."""

MOST_PAIRS = 1 << 20
"""Pairs of a piece that is wanted and one of the source's of which flows are listed at once."""

Places = NDArray[np.int64]

Groups = tuple[tuple[int, ...], ...]
"""Devices that communicate with each other; no device is in two."""


@dataclass(frozen=True)
class Transfer:
    """How a tensor gets from one layout to another. ``source.partials`` is a multiple of
    ``target.partials``; adjacent groups of partials are summed."""

    source: Layout
    target: Layout

    @property
    def group(self) -> int:
        """How many partials are summed into one."""
        return self.source.type.degrees.partials // self.target.type.degrees.partials

    @property
    def has_halos(self) -> bool:
        return bool(self.source.type.degrees.halos or self.target.type.degrees.halos)

    @property
    def flows(self) -> Flows:
        """What every device needs, and from whom: from itself where it can. They are not kept:
        there may be millions, and who asks keeps what follows from them."""
        (all_flows,) = self._flows([self.target.cells])
        return all_flows

    @property
    def flows_in_parts(self) -> Iterator[Flows]:
        """The same, of some of the target's pieces after the other, so that they take little
        memory. Who ``wanted`` them is a number among those."""
        cells, most = self.target.cells, self.group * len(np.unique(self.source.cells.numbers))
        count = -(-len(cells.devices) * most // MOST_PAIRS)
        parts = (np.array_split(field, count) for field in cells)
        return self._flows(Cells(*fields) for fields in zip(*parts, strict=True))

    def _flows(self, parts: Iterable[Cells]) -> Iterator[Flows]:
        """What each part of the pieces wanted needs, and from whom."""
        pieces = self.source.cells
        numbers, first, which = np.unique(pieces.numbers, return_index=True, return_inverse=True)
        # The holders of each piece, ascending; spread the load: the n-th device that asks asks
        # the n-th holder.
        order = np.lexsort((pieces.devices, which))
        counts = np.bincount(which, minlength=len(numbers))
        starts = np.cumsum(counts) - counts
        held = np.full(1 + max(pieces.devices.max(), self.target.cells.devices.max()), -1)
        held[pieces.devices] = which
        for wanted in parts:
            at, piece, shared = self._shared(wanted, numbers)
            targets = wanted.devices[at]
            chosen = pieces.devices[order][starts[piece] + targets % counts[piece]]
            sources = np.where(held[targets] == piece, targets, chosen)
            yield Flows(sources, targets, shared, at, first[piece])

    def _shared(self, wanted: Cells, numbers: Places) -> tuple[Places, Places, Places]:
        """[shared]: which piece that is wanted and which of the source's, by place in ``numbers``,
        share elements, and how many, one partial of a sum at a time. By the pieces wanted, then by
        those of the source."""
        source = self.source.without_halos.type
        first, last = self.target.bounds(wanted.blocks)
        length = np.array(source.block, np.int64)
        # The blocks along a dimension with which a piece shares elements follow one another.
        begin = np.column_stack((wanted.partials * self.group, first // length))
        counts = np.column_stack(
            (np.full(len(begin), self.group), -(-last // length) - first // length)
        )
        pairs = counts.prod(axis=1)
        at = np.repeat(np.arange(len(begin)), pairs)
        left = np.arange(len(at)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
        number, stride = np.zeros(len(at), np.int64), 1
        shared = np.ones(len(at), np.int64)
        for dim in reversed(range(source.rank)):
            left, digit = np.divmod(left, counts[at, 1 + dim])
            block = begin[at, 1 + dim] + digit
            start = np.maximum(first[at, dim], block * length[dim])
            shared *= np.minimum(last[at, dim], (block + 1) * length[dim]) - start
            number += block * stride
            stride *= source.degrees.dims[dim]
        number += (begin[at, 0] + left) * stride
        piece = np.searchsorted(numbers, number).clip(max=len(numbers) - 1)
        is_held = numbers[piece] == number
        return at[is_held], piece[is_held], shared[is_held]

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """What every device needs, and from whom: from itself where it can."""
        flows = self.flows
        first, last = self.target.bounds(self.target.cells.blocks[flows.wanted])
        there = self.source.cells.blocks[flows.pieces]
        own_first, own_last = self.source.without_halos.bounds(there)
        start, stop = np.maximum(first, own_first), np.minimum(last, own_last)
        return tuple(
            Message(source, target, tuple(zip(begin, end, strict=True)))
            for source, target, begin, end in zip(
                flows.sources.tolist(),
                flows.targets.tolist(),
                start.tolist(),
                stop.tolist(),
                strict=True,
            )
        )

    @property
    def groups(self) -> Groups | None:
        """The groups of devices of the collective that ``kind`` names; None where it names none."""
        match self.kind:
            case "all_reduce":
                return self._reduces
            case "all_gather":
                return self._gathers
            case "reduce_scatter":
                return self._scatters
            case _:
                return None

    @cached_property
    def _reduces(self) -> Groups | None:
        """Groups of devices for all_reduce, when that is what the transfer amounts to."""
        same_blocks = self.source.type.degrees.dims == self.target.type.degrees.dims
        if self.group == 1 or not same_blocks or self.has_halos:
            return None
        groups: list[tuple[int, ...]] = []
        for piece, devices in self.target.holders.items():
            parts = [
                self.source.holders[Piece(piece.partial * self.group + j, piece.block)]
                for j in range(self.group)
            ]
            if len({len(part) for part in parts}) > 1:
                return None
            if sorted(device for part in parts for device in part) != list(devices):
                return None
            groups += [tuple(sorted(group)) for group in zip(*parts, strict=True)]
        return tuple(sorted(groups))

    @cached_property
    def _gathers(self) -> Groups | None:
        """Groups of devices for all_gather, when that is what the transfer amounts to: each group
        puts the blocks of its devices together on all of them."""
        alone = self.group > 1 or self.has_halos
        return None if alone else _gathered(self.source, self.target)

    @cached_property
    def _scatters(self) -> Groups | None:
        """Groups of devices for reduce_scatter, when that is what the transfer amounts to: each
        group sums the partials of its devices, and each of these keeps a part of the sum."""
        if self.group == 1 or self.has_halos:
            return None
        # What is summed is what would be copied the other way: the adjoint gathers.
        groups: list[tuple[int, ...]] = []
        wanted: dict[tuple[int, tuple[int, ...]], dict[int, Piece]] = {}
        inner = self._inner_blocks()
        if inner is None:
            return None
        for device, piece in self.target.pieces:
            outer = tuple(b // n for b, n in zip(piece.block, inner, strict=True))
            wanted.setdefault((piece.partial, outer), {})[device] = piece
        for (partial, block), kept in wanted.items():
            parts = [
                self.source.holders.get(Piece(partial * self.group + j, block), ())
                for j in range(self.group)
            ]
            if len({len(part) for part in parts}) > 1:
                return None
            if sorted(device for part in parts for device in part) != sorted(kept):
                return None
            for group in zip(*parts, strict=True):
                if len({kept[device] for device in group}) != self.group or prod(inner) != len(
                    group
                ):
                    return None
                groups.append(tuple(sorted(group)))
        return tuple(sorted(groups))

    def _inner_blocks(self) -> tuple[int, ...] | None:
        """Into how many blocks each block of the source is cut, if it is cut further."""
        pairs = zip(self.source.type.degrees.dims, self.target.type.degrees.dims, strict=True)
        divided = [(b // a, b % a) for a, b in pairs]
        return None if any(rest for _, rest in divided) else tuple(times for times, _ in divided)

    @cached_property
    def swaps(self) -> Groups | None:
        """Groups of devices for all_to_all, when that is what the messages amount to: each device
        has one message of the same size for every other, and all that it holds goes to one of
        them. Then its gradient comes back from there."""
        blocks = prod(self.source.type.block), prod(self.target.type.block)
        if self.kind != "messages" or self.group > 1 or self.has_halos or blocks[0] != blocks[1]:
            return None
        heard: dict[int, set[int]] = {device: set() for device in self.target.devices}
        told: dict[int, set[int]] = {device: set() for device in self.source.devices}
        for message in self.messages:
            heard[message.target].add(message.source)
            told[message.source].add(message.target)
        pairs = sum(map(len, heard.values()))
        if pairs != len(self.messages) or len({m.elements for m in self.messages}) > 1:
            return None
        if heard != told or self._sends_twice():
            return None
        closed = {tuple(sorted(peers)) for peers in heard.values()}
        # The groups have to be closed: whoever is in one talks to just its members.
        if any(tuple(sorted(heard[d])) != group for group in closed for d in group):
            return None
        return tuple(sorted(closed))

    def _sends_twice(self) -> bool:
        """Whether a device sends an element to two others."""
        regions: dict[int, list[Region]] = {}
        for message in self.messages:
            regions.setdefault(message.source, []).append(message.region)
        return any(intersection(*pair) for own in regions.values() for pair in combinations(own, 2))

    @cached_property
    def is_nothing(self) -> bool:
        """Whether each device has just what it needs."""
        if self.group != 1 or set(self.source.pieces) != set(self.target.pieces):
            return False
        a, b = self.source.type.degrees, self.target.type.degrees
        return (a.dims, a.halos) == (b.dims, b.halos)

    @property
    def _is_local(self) -> bool:
        """Whether each device has all that it needs, in one piece."""
        if self.group > 1:
            return False
        places = {device: at for at, device in enumerate(self.source.cells.devices.tolist())}
        own = [places.get(device, -1) for device in self.target.cells.devices.tolist()]
        if -1 in own:
            return False
        pieces, wanted = self.source.cells, self.target.cells
        first, last = self.target.bounds(wanted.blocks)
        own_first, own_last = self.source.without_halos.bounds(pieces.blocks[own])
        has_partial = (pieces.partials[own] == wanted.partials).all()
        return bool(has_partial and (own_first <= first).all() and (last <= own_last).all())

    @cached_property
    def kind(self) -> TransferKind:
        """What the transfer amounts to; the cost model and the runtime read it here."""
        if self.is_nothing:
            return "none"
        if self._reduces is not None:
            return "all_reduce"
        if self._is_local:
            return "local"
        if self._gathers is not None:
            return "all_gather"
        return "messages" if self._scatters is None else "reduce_scatter"

    @cached_property
    def elements(self) -> int:
        """Elements that cross between devices, counted once for each that is sent; a ring
        all_reduce of n devices sends each element 2 (n - 1) times."""
        if self.kind in ("none", "local"):
            return 0
        if self.kind == "all_reduce":
            block = prod(self.source.type.block)
            return sum(2 * (len(group) - 1) * block for group in self.groups or ())
        flows = self.flows
        return int(flows.elements[flows.sources != flows.targets].sum())


def _gathered(source: Layout, target: Layout) -> Groups | None:
    groups: list[tuple[int, ...]] = []
    cuts = list(zip(source.type.degrees.dims, target.type.degrees.dims, strict=True))
    if any(a % b for a, b in cuts) or all(a == b for a, b in cuts):
        return None
    inner = [a // b for a, b in cuts]
    for piece, devices in target.holders.items():
        blocks = product(
            *(range(b * n, (b + 1) * n) for b, n in zip(piece.block, inner, strict=True))
        )
        parts = [source.holders.get(Piece(piece.partial, block), ()) for block in blocks]
        if len({len(part) for part in parts}) > 1:
            return None
        if sorted(device for part in parts for device in part) != list(devices):
            return None
        groups += [tuple(sorted(group)) for group in zip(*parts, strict=True)]
    return tuple(sorted(groups))


@lru_cache(maxsize=65536)
def transfer(source: Layout, target: Layout) -> Transfer:
    """The transfer between two layouts, shared by all that ask for it."""
    return Transfer(source, target)
