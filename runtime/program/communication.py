"""Turn a transfer into each rank's instruction: a collective where it is one, else messages.

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
    """The collective that a transfer amounts to, with its groups; None where it is none."""
    kind, groups = transfer.kind, transfer.groups
    if groups is None:
        return None if transfer.swaps is None else ("all_to_all", transfer.swaps)
    assert kind in ("all_reduce", "all_gather", "reduce_scatter")
    return kind, groups


def collective(
    transfer: Transfer, rank: int, source: str, target: str, position: int = 0
) -> Collective | None:
    """A rank's part of a transfer that ``pattern`` calls a collective; None for a rank that takes
    no part."""
    regular = pattern(transfer)
    assert regular is not None, "asked for where there is a pattern"
    kind = regular[0]
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
            sent, got = _swapped(transfer)[rank]
            sends, receives = (tuple(known[member] for member in group) for known in (sent, got))
            return AllToAll(source, target, group, sends, receives, position)


@lru_cache(maxsize=4096)
def _places(layout: Layout, group: Group, whole: Region) -> tuple[Region, ...]:
    """Where in a region the pieces of members are: the same for all that have the same."""
    return tuple([within(layout.regions[member], whole) for member in group])


@lru_cache(maxsize=4096)
def _group_of(transfer: Transfer) -> Mapping[int, Group]:
    """The group of each rank that takes part in a transfer by a collective."""
    known = pattern(transfer)
    assert known is not None, "asked for where there is a pattern"
    return {rank: group for group in known[1] for rank in group}


@lru_cache(maxsize=1024)
def _swapped(transfer: Transfer) -> Mapping[int, tuple[dict[int, Region], dict[int, Region]]]:
    """Of each rank of an all_to_all, what goes to each member, and where what comes goes."""
    parts: dict[int, tuple[dict[int, Region], dict[int, Region]]] = {}
    for message in transfer.messages:
        sender, receiver = message.source, message.target
        sent = parts.setdefault(sender, ({}, {}))[0]
        sent[receiver] = within(message.region, transfer.source.regions[sender])
        got = parts.setdefault(receiver, ({}, {}))[1]
        got[sender] = within(message.region, transfer.target.regions[receiver])
    return parts


def exchange(transfer: Transfer, rank: int, source: str, target: str) -> Exchange:
    """One rank's part of a transfer by messages."""
    own = _exchanges(transfer).get(rank, NOTHING)
    return replace(
        own,
        source=source if rank in transfer.source.by_device else None,
        target=target if rank in transfer.target.by_device else None,
    )


def one_copy(layout: Layout, copy: int) -> Layout:
    """The layout with one holder for each piece, the last one where there are fewer copies."""
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
    """What each rank does with messages, as (sender, receiver, region of what the sender has,
    region of what the receiver wants). Both ends list theirs in the order given."""
    sends: dict[int, list[PieceRegion]] = {}
    receives: dict[int, list[PieceRegion]] = {}
    kept: dict[int, list[LocalCopy]] = {}
    for sender, receiver, given, place in messages:
        if sender == receiver:
            kept.setdefault(sender, []).append(LocalCopy(given, place))
            continue
        sends.setdefault(sender, []).append(PieceRegion(receiver, given))
        receives.setdefault(receiver, []).append(PieceRegion(sender, place))
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
