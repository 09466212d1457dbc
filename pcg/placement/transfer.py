"""Transfers: the data movement between two layouts of a tensor, for a chain of parallel operators.

Partition, combine, replicate and reduce change where a tensor lies and never what it means. So a
chain of them between two operators is one linear map from pieces to pieces. The piece of a device
in the new layout is the sum, over the reduced partials, of the blocks that it covers. Cost model
and runtime use the same description. Its adjoint is the map read backwards.

A regular transfer is a collective, which follows from the pieces: reduce and replicate is an
all_reduce, combine and replicate an all_gather, reduce and partition a reduce_scatter, and combine
and partition along another dimension an all_to_all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product
from math import prod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcg.placement.holders import Holders, Places, holders_of, ranks
from pcg.placement.layout import Cells, Layout, Piece
from pcg.placement.region import Region, elements, intersection


@dataclass(frozen=True)
class Message:
    """``region`` of a tensor that one device sends to another, or to itself."""

    source: int
    target: int
    region: Region

    @property
    def elements(self) -> int:
        return elements(self.region)


class Flows(NamedTuple):
    """The messages of a transfer as arrays [messages], ordered by the target's piece and then by
    the source's piece."""

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    elements: NDArray[np.int64]
    wanted: NDArray[np.intp]
    """The number of the target's piece that wants the message."""
    pieces: NDArray[np.intp]
    """The number of a piece of the source that holds the message."""


TransferKind = Literal["none", "local", "all_reduce", "all_gather", "reduce_scatter", "messages"]
"""The kind of a transfer: nothing moves, each device copies what it has, a collective, or messages.
Some sets of messages are an all_to_all (``Transfer.swaps``)."""

MOST_PAIRS = 1 << 20
"""The most pairs of a target's piece and a source's piece whose flows are listed at once."""

FEW_PAIRS = 1 << 12
"""The most such pairs that are all compared. Of more, those that share elements are listed."""

Groups = tuple[tuple[int, ...], ...]
"""Groups of devices that communicate. No device is in two of them."""


class _Requests(NamedTuple):
    """The elements that wanted pieces share with pieces of the source, as arrays [requests]."""

    wanted: NDArray[np.intp]
    """The number of the target's piece."""
    piece: NDArray[np.intp]
    """The piece of the source, by its position among the different ones."""
    shared: NDArray[np.int64]
    targets: NDArray[np.int64]
    is_asked: NDArray[np.bool_]
    """Whether another device is asked, as the target does not hold the piece itself."""

    @property
    def asked(self) -> NDArray[np.intp]:
        """The pieces of which another device is asked."""
        return self.piece[self.is_asked]


@dataclass(frozen=True)
class Transfer:
    """The data movement from one layout to another. ``source.partials`` is a multiple of
    ``target.partials``, and adjacent groups of partials are summed."""

    source: Layout
    target: Layout

    @property
    def group(self) -> int:
        """The number of partials that are summed into one."""
        return self.source.type.degrees.partials // self.target.type.degrees.partials

    @property
    def has_halos(self) -> bool:
        return bool(self.source.type.degrees.halos or self.target.type.degrees.halos)

    @property
    def flows(self) -> Flows:
        """The messages to every device, from itself if possible. They are not cached: there may be
        millions, and callers cache what follows from them."""
        (all_flows,) = self._flows([self.target.cells])
        return all_flows

    @property
    def flows_in_parts(self) -> Iterator[Flows]:
        """The same in several parts, which take little memory. ``wanted`` counts the target's
        pieces within a part."""
        cells, most = self.target.cells, self.group * len(holders_of(self.source).numbers)
        count = -(-len(cells.devices) * most // MOST_PAIRS)
        if count == 1:
            return self._flows([cells])
        parts = (np.array_split(field, count) for field in cells)
        return self._flows([Cells(*fields) for fields in zip(*parts, strict=True)])

    def _flows(self, parts: Sequence[Cells]) -> Iterator[Flows]:
        """Yield the messages for each part of the target's pieces."""
        holders = holders_of(self.source)
        # Several parts are listed twice: all of them at once would take much memory.
        kept = [self._requests(parts[0], holders)] if len(parts) == 1 else None
        askers, begun = np.zeros((2, len(holders.numbers)), np.int64)
        for requests in kept or (self._requests(part, holders) for part in parts):
            askers += np.bincount(requests.asked, minlength=len(askers))
        for requests in kept or (self._requests(part, holders) for part in parts):
            asked, sources = requests.asked, requests.targets.copy()
            number = begun[asked] + ranks(asked)
            sources[requests.is_asked] = holders.asked(asked, number, askers)
            begun += np.bincount(asked, minlength=len(begun))
            first = holders.first[requests.piece]
            yield Flows(sources, requests.targets, requests.shared, requests.wanted, first)

    def _requests(self, wanted: Cells, holders: Holders) -> _Requests:
        pairs = len(wanted.devices) * len(holders.numbers)
        shared_by = self._shared_of_few if pairs <= FEW_PAIRS else self._shared
        number, piece, shared = shared_by(wanted, holders)
        targets = wanted.devices[number]
        held = holders.held[np.minimum(targets, len(holders.held) - 1)]
        return _Requests(number, piece, shared, targets, held != piece)

    def _shared(self, wanted: Cells, holders: Holders) -> tuple[Places, Places, Places]:
        """Return the pairs of a wanted piece and a piece of the source that share elements, the
        latter by position in ``numbers``, and the number of shared elements: three arrays [pairs].

        Each partial of a sum is a pair. Pairs are ordered by wanted piece, then by the source's.
        """
        source, numbers = self.source.without_halos.type, holders.numbers
        first, last = self.target.bounds(wanted.blocks)
        length = np.array(source.block, np.int64)
        # The blocks along a dimension that share elements with a piece are consecutive.
        begin = np.column_stack((wanted.partials * self.group, first // length))
        counts = np.column_stack(
            (np.full(len(begin), self.group), -(-last // length) - first // length)
        )
        pairs = counts.prod(axis=1)
        wanted_number = np.repeat(np.arange(len(begin)), pairs)
        left = np.arange(len(wanted_number)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
        number, stride = np.zeros(len(wanted_number), np.int64), 1
        shared = np.ones(len(wanted_number), np.int64)
        for dim in reversed(range(source.rank)):
            left, digit = np.divmod(left, counts[wanted_number, 1 + dim])
            block = begin[wanted_number, 1 + dim] + digit
            start = np.maximum(first[wanted_number, dim], block * length[dim])
            shared *= np.minimum(last[wanted_number, dim], (block + 1) * length[dim]) - start
            number += block * stride
            stride *= source.degrees.dims[dim]
        number += (begin[wanted_number, 0] + left) * stride
        piece = np.searchsorted(numbers, number).clip(max=len(numbers) - 1)
        is_held = numbers[piece] == number
        return wanted_number[is_held], piece[is_held], shared[is_held]

    def _shared_of_few(self, wanted: Cells, holders: Holders) -> tuple[Places, Places, Places]:
        """The same as ``_shared``, by a comparison of every wanted piece with every piece of the
        source. That is faster for few pieces."""
        first, last = self.target.bounds(wanted.blocks)
        size = np.minimum(last[:, None], holders.stops) - np.maximum(first[:, None], holders.starts)
        shared = size.clip(min=0).prod(axis=2)
        shared[holders.partials // self.group != wanted.partials[:, None]] = 0
        number, piece = shared.nonzero()
        return number, piece, shared[number, piece]

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """The messages to every device, from itself if possible, with regions."""
        flows = self.flows
        first, last = self.target.bounds(self.target.cells.blocks[flows.wanted])
        blocks = self.source.cells.blocks[flows.pieces]
        source_first, source_last = self.source.without_halos.bounds(blocks)
        start, stop = np.maximum(first, source_first), np.minimum(last, source_last)
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
        """The groups of devices of the collective ``kind``, or None for other kinds."""
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
        """The groups of an all_reduce, or None if the transfer is no all_reduce."""
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
        """The groups of an all_gather, or None if the transfer is no all_gather. Each group joins
        the blocks of its devices on all of them."""
        alone = self.group > 1 or self.has_halos
        return None if alone else _gathered(self.source, self.target)

    @cached_property
    def _scatters(self) -> Groups | None:
        """The groups of a reduce_scatter, or None if the transfer is no reduce_scatter. Each group
        sums the partials of its devices, and each device keeps a part of the sum."""
        if self.group == 1 or self.has_halos:
            return None
        # The adjoint is an all_gather: the summed devices are those to which it would copy.
        groups: list[tuple[int, ...]] = []
        wanted: dict[tuple[int, tuple[int, ...]], dict[int, Piece]] = {}
        inner = self._inner_blocks()
        if inner is None:
            return None
        for device, piece in self.target.pieces:
            outer = tuple(b // n for b, n in zip(piece.block, inner, strict=True))
            wanted.setdefault((piece.partial, outer), {})[device] = piece
        for (partial, block), pieces in wanted.items():
            parts = [
                self.source.holders.get(Piece(partial * self.group + j, block), ())
                for j in range(self.group)
            ]
            if len({len(part) for part in parts}) > 1:
                return None
            if sorted(device for part in parts for device in part) != sorted(pieces):
                return None
            for group in zip(*parts, strict=True):
                if len({pieces[device] for device in group}) != self.group or prod(inner) != len(
                    group
                ):
                    return None
                groups.append(tuple(sorted(group)))
        return tuple(sorted(groups))

    def _inner_blocks(self) -> tuple[int, ...] | None:
        """Return into how many blocks each block of the source is cut, by dimension, or None."""
        pairs = zip(self.source.type.degrees.dims, self.target.type.degrees.dims, strict=True)
        divided = [(b // a, b % a) for a, b in pairs]
        return None if any(rest for _, rest in divided) else tuple(times for times, _ in divided)

    @cached_property
    def swaps(self) -> Groups | None:
        """The groups of an all_to_all, or None if the messages are no all_to_all.

        Each device sends one message to every device of its group, all of equal size, and sends
        each of its elements once. So the gradient can come back by the reverse messages.
        """
        blocks = prod(self.source.type.block), prod(self.target.type.block)
        if self.kind != "messages" or self.group > 1 or self.has_halos or blocks[0] != blocks[1]:
            return None
        senders: dict[int, set[int]] = {device: set() for device in self.target.devices}
        receivers: dict[int, set[int]] = {device: set() for device in self.source.devices}
        for message in self.messages:
            senders[message.target].add(message.source)
            receivers[message.source].add(message.target)
        pairs = sum(map(len, senders.values()))
        if pairs != len(self.messages) or len({m.elements for m in self.messages}) > 1:
            return None
        if senders != receivers or self._sends_twice():
            return None
        closed = {tuple(sorted(peers)) for peers in senders.values()}
        # Groups have to be closed: each device exchanges messages with just its group.
        if any(tuple(sorted(senders[d])) != group for group in closed for d in group):
            return None
        return tuple(sorted(closed))

    def _sends_twice(self) -> bool:
        """Whether a device sends an element to two devices."""
        regions: dict[int, list[Region]] = {}
        for message in self.messages:
            regions.setdefault(message.source, []).append(message.region)
        return any(
            intersection(*pair) for sent in regions.values() for pair in combinations(sent, 2)
        )

    @cached_property
    def is_nothing(self) -> bool:
        """Whether each device already has just what it needs."""
        a, b = self.source.type.degrees, self.target.type.degrees
        if self.group != 1 or (a.dims, a.halos) != (b.dims, b.halos):
            return False
        return set(self.source.pieces) == set(self.target.pieces)

    @property
    def _is_local(self) -> bool:
        """Whether each device has all that it needs in its own piece."""
        if self.group > 1:
            return False
        places = {
            device: number for number, device in enumerate(self.source.cells.devices.tolist())
        }
        numbers = [places.get(device, -1) for device in self.target.cells.devices.tolist()]
        if -1 in numbers:
            return False
        pieces, wanted = self.source.cells, self.target.cells
        first, last = self.target.bounds(wanted.blocks)
        source_first, source_last = self.source.without_halos.bounds(pieces.blocks[numbers])
        has_partial = (pieces.partials[numbers] == wanted.partials).all()
        return bool(has_partial and (source_first <= first).all() and (last <= source_last).all())

    @cached_property
    def kind(self) -> TransferKind:
        """The kind of the transfer, for cost model and runtime alike."""
        if not self.source.by_device.keys() >= self.target.by_device.keys():
            return "messages"  # in all other kinds, each device that gets a piece has one before
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
        """The number of elements sent between devices. A ring all_reduce of n devices sends each
        element 2 (n - 1) times."""
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
    """Return the transfer between two layouts, one cached object for all callers."""
    return Transfer(source, target)
