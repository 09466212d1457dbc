"""How a transfer is carried out: by a collective where it is regular, else by messages.

reduce and replicate is an all_reduce, combine and replicate an all_gather, reduce and partition a
reduce_scatter, combine and partition along other dimensions an all_to_all.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Literal

from pcg.layout import Layout
from pcg.transfer import Message, Region, Transfer
from runtime.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    Exchange,
    Group,
    Kept,
    Part,
    ReduceScatter,
)

Pattern = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@lru_cache(maxsize=4096)
def pattern(move: Transfer) -> tuple[Pattern, tuple[Group, ...]] | None:
    """The collective that a transfer amounts to, with its groups; None where it is none."""
    if move.groups is not None:
        return "all_reduce", move.groups
    if move.kind != "messages":
        return None
    if move.gathers is not None:
        return "all_gather", move.gathers
    if move.scatters is not None:
        return "reduce_scatter", move.scatters
    swaps = _swaps(move)
    return None if swaps is None else ("all_to_all", swaps)


def _swaps(move: Transfer) -> tuple[Group, ...] | None:
    """Groups in which every device has one message of the same size for every other, and all that
    it holds goes to one of them: then its gradient comes back from there."""
    blocks = prod(move.source.type.block), prod(move.target.type.block)
    if move.group > 1 or move.has_halos or blocks[0] != blocks[1]:
        return None
    heard: dict[int, set[int]] = {device: set() for device in move.target.devices}
    told: dict[int, set[int]] = {device: set() for device in move.source.devices}
    for message in move.messages:
        heard[message.target].add(message.source)
        told[message.source].add(message.target)
    pairs = sum(map(len, heard.values()))
    if pairs != len(move.messages) or len({m.elements for m in move.messages}) > 1:
        return None
    if heard != told:
        return None
    found = {tuple(sorted(peers)) for peers in heard.values()}
    # The groups have to be closed: whoever is in one talks to just its members.
    if any(tuple(sorted(heard[d])) != group for group in found for d in group):
        return None
    for device in told:
        regions = [message.region for message in _of(move, source=device)]
        if any(_meet(a, b) for a, b in combinations(regions, 2)):
            return None
    return tuple(sorted(found))


def _meet(a: Region, b: Region) -> bool:
    """Whether two regions have elements in common."""
    return all(max(i, k) < min(j, m) for (i, j), (k, m) in zip(a, b, strict=True))


def collective(
    move: Transfer, rank: int, source: str, target: str, position: int = 0
) -> Collective | None:
    """A rank's part of a transfer that ``pattern`` calls a collective; None for a rank that takes
    no part."""
    found = pattern(move)
    assert found is not None, "asked for where there is a pattern"
    kind, groups = found
    group = next((group for group in groups if rank in group), None)
    if group is None:
        return None
    match kind:
        case "all_reduce":
            return AllReduce(source, target, group, position)
        case "all_gather":
            own = region_of(move.target, rank)
            places = tuple(inside(region_of(move.source, member), own) for member in group)
            return AllGather(source, target, group, places, position)
        case "reduce_scatter":
            own = region_of(move.source, rank)
            places = tuple(inside(region_of(move.target, member), own) for member in group)
            return ReduceScatter(source, target, group, places, position)
        case "all_to_all":
            sent = {m.target: _within(move.source, m, rank) for m in _of(move, source=rank)}
            got = {m.source: _within(move.target, m, rank) for m in _of(move, target=rank)}
            sends, receives = (tuple(known[member] for member in group) for known in (sent, got))
            return AllToAll(source, target, group, sends, receives, position)


def exchange(move: Transfer, rank: int, source: str, target: str) -> Exchange:
    """One rank's part of a transfer by messages."""
    sends: list[Part] = []
    receives: list[Part] = []
    kept: list[Kept] = []
    for message in move.messages:
        if rank not in (message.source, message.target):
            continue
        if message.target != rank:
            sends.append(Part(message.target, _within(move.source, message, rank)))
            continue
        place = _within(move.target, message, rank)
        if message.source != rank:
            receives.append(Part(message.source, place))
        else:
            kept.append(Kept(_within(move.source, message, rank), place))
    return Exchange(
        source if rank in move.source.by_device else None,
        target if rank in move.target.by_device else None,
        tuple(sends),
        tuple(receives),
        tuple(kept),
    )


def _of(
    move: Transfer, source: int | None = None, target: int | None = None
) -> tuple[Message, ...]:
    """The messages of a sender or receiver."""
    return tuple(m for m in move.messages if m.source == source or m.target == target)


def region_of(layout: Layout, device: int) -> Region:
    """The global indices of a device's piece."""
    return layout.regions[device]


def _within(layout: Layout, message: Message, device: int) -> Region:
    """A message's region, counted from the first element of a device's piece."""
    return inside(message.region, region_of(layout, device))


def inside(region: Region, piece: Region) -> Region:
    """A region, counted from the first element of a piece."""
    return tuple(
        (start - first, stop - first)
        for (start, stop), (first, _) in zip(region, piece, strict=True)
    )
