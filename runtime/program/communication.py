"""Turn a transfer into each rank's instruction: a collective if there is one, else messages.

reduce and replicate is an all_reduce, combine and replicate an all_gather, reduce and partition a
reduce_scatter, combine and partition along other dimensions an all_to_all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from pcg.placement.layout import Layout
from pcg.placement.region import Region, within
from pcg.placement.transfer import Transfer
from runtime.program.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    Exchange,
    Group,
    LocalCopy,
    PieceRegion,
    ReduceScatter,
)

Pattern = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@lru_cache(maxsize=4096)
def pattern(transfer: Transfer) -> tuple[Pattern, tuple[Group, ...]] | None:
    """The collective that equals a transfer, and its groups. None if no collective does."""
    kind, groups = transfer.kind, transfer.groups
    if groups is None:
        return None if transfer.swaps is None else ("all_to_all", transfer.swaps)
    assert kind in ("all_reduce", "all_gather", "reduce_scatter")
    return kind, groups


def collective(
    transfer: Transfer, rank: int, source: str, target: str, position: int = 0
) -> Collective | None:
    """A rank's instruction for a transfer for which ``pattern`` has a collective. None for a rank
    that takes no part."""
    kind_and_groups = pattern(transfer)
    assert kind_and_groups is not None, "callers check that there is a collective"
    kind = kind_and_groups[0]
    group = _group_of(transfer).get(rank)
    if group is None:
        return None
    match kind:
        case "all_reduce":
            return AllReduce(source, target, group, position)
        case "all_gather":
            places = _places(transfer.source, group, transfer.target.regions[rank])
            return AllGather(source, target, group, places, position)
        case "reduce_scatter":
            places = _places(transfer.target, group, transfer.source.regions[rank])
            return ReduceScatter(source, target, group, places, position)
        case "all_to_all":
            by_peer = _swapped_regions(transfer)[rank]
            sends, receives = (tuple(regions[member] for member in group) for regions in by_peer)
            return AllToAll(source, target, group, sends, receives, position)


@lru_cache(maxsize=4096)
def _places(layout: Layout, group: Group, outer: Region) -> tuple[Region, ...]:
    """The blocks of a group's members, relative to a region that contains all of them."""
    return tuple([within(layout.regions[member], outer) for member in group])


@lru_cache(maxsize=4096)
def _group_of(transfer: Transfer) -> Mapping[int, Group]:
    """The group of each rank that takes part in a transfer by a collective."""
    kind_and_groups = pattern(transfer)
    assert kind_and_groups is not None, "callers check that there is a collective"
    return {rank: group for group in kind_and_groups[1] for rank in group}


@lru_cache(maxsize=1024)
def _swapped_regions(
    transfer: Transfer,
) -> Mapping[int, tuple[dict[int, Region], dict[int, Region]]]:
    """For each rank of an all_to_all: the region of its source that goes to each peer, and the
    region of its target that each peer fills."""
    parts: dict[int, tuple[dict[int, Region], dict[int, Region]]] = {}
    for message in transfer.messages:
        sender, receiver = message.source, message.target
        sends = parts.setdefault(sender, ({}, {}))[0]
        sends[receiver] = within(message.region, transfer.source.regions[sender])
        receives = parts.setdefault(receiver, ({}, {}))[1]
        receives[sender] = within(message.region, transfer.target.regions[receiver])
    return parts


def exchange(transfer: Transfer, rank: int, source: str, target: str) -> Exchange:
    """A rank's instruction for a transfer by messages."""
    nameless = _exchanges(transfer).get(rank, NOTHING)
    return replace(
        nameless,
        source=source if rank in transfer.source.by_device else None,
        target=target if rank in transfer.target.by_device else None,
    )


def one_copy(layout: Layout, copy: int) -> Layout:
    """The layout with a single holder of each piece: number ``copy``, or the last one if there are
    fewer."""
    chosen = (
        (devices[min(copy, len(devices) - 1)], piece) for piece, devices in layout.holders.items()
    )
    return Layout(layout.type, tuple(sorted(chosen)))


NOTHING = Exchange(None, None, (), (), ())
"""The part of a rank that neither sends nor receives."""


@lru_cache(maxsize=4096)
def _exchanges(transfer: Transfer) -> Mapping[int, Exchange]:
    return by_rank(
        (
            message.source,
            message.target,
            within(message.region, transfer.source.regions[message.source]),
            within(message.region, transfer.target.regions[message.target]),
        )
        for message in transfer.messages
    )


def by_rank(messages: Iterable[tuple[int, int, Region, Region]]) -> Mapping[int, Exchange]:
    """Each rank's instruction for a list of messages, without the names of registers.

    A message is (sender, receiver, region of the sender's block, region of the receiver's block).
    Sender and receiver list their messages in the same order, that of the argument.
    """
    sends: dict[int, list[PieceRegion]] = {}
    receives: dict[int, list[PieceRegion]] = {}
    kept: dict[int, list[LocalCopy]] = {}
    for sender, receiver, taken_from, put_at in messages:
        if sender == receiver:
            kept.setdefault(sender, []).append(LocalCopy(taken_from, put_at))
            continue
        sends.setdefault(sender, []).append(PieceRegion(receiver, taken_from))
        receives.setdefault(receiver, []).append(PieceRegion(sender, put_at))
    return {
        rank: Exchange(
            None,
            None,
            tuple(sends.get(rank, ())),
            tuple(receives.get(rank, ())),
            tuple(kept.get(rank, ())),
        )
        for rank in {*sends, *receives, *kept}
    }
