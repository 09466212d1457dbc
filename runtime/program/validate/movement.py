"""Compute the contents of registers after a communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pcg.placement.region import Region, elements, extent
from runtime.program.program import Collective, Exchange
from runtime.program.validate.content import (
    Content,
    Fragment,
    Places,
    assemble,
    fragment,
)
from runtime.program.validate.errors import Unsound
from runtime.program.validate.transposed import LinearMap, linear_map


class Member(NamedTuple):
    """A rank's part of a collective. ``shape``: the shape of its target."""

    rank: int
    instruction: Collective
    source: Content
    shape: tuple[int, ...]


def collected(members: Sequence[Member], places: Places) -> list[Content]:
    """The content of each member's target after a collective. Collectives that differ only in the
    tensor share one computation.

    Raises Unsound if a target is not a block of one tensor.
    """
    maps = [linear_map(member.instruction) for member in members]
    tensor = members[0].source.tensor
    if any(member.source.tensor is not tensor for member in members):
        return _collected(members, maps, places)
    key = tuple(
        [
            (id(own.sends), id(own.receives), member.source.place, member.shape)
            for member, own in zip(members, maps, strict=True)
        ]
    )
    cached = places.collected.get(key)
    if cached is None:
        contents = _collected(members, maps, places)
        # The maps are kept because the key contains ids of their parts.
        places.collected[key] = maps, [content.place for content in contents]
        return contents
    return [Content(tensor, place) for place in cached[1]]


def _collected(
    members: Sequence[Member], maps: Sequence[LinearMap], places: Places
) -> list[Content]:
    for own in maps:
        for side in (own.sends, own.receives):
            if side is not None and len(side) != len(members):
                raise Unsound(f"has {len(side)} regions, expected {len(members)}, one a member")
    if len({elements(side[0]) if (side := own.sends) else -1 for own in maps}) > 1:
        raise Unsound("members give parts of different sizes")
    have_same_block = all(
        m.source.place.region == members[0].source.place.region for m in members
    ) and all(own.sends == maps[0].sends for own in maps)
    if have_same_block and maps[0].receives is None and all(own.receives is None for own in maps):
        return _summed(members, maps[0].sends, places)
    by_key: dict[object, Content] = {}
    contents: list[Content] = []
    for number, (member, own) in enumerate(zip(members, maps, strict=True)):
        # If members send everything to all, members with the same regions get the same content.
        key = (number if maps[0].sends is not None else -1, own.receives, member.shape)
        content = by_key.get(key)
        if content is None:
            fragments = [
                fragment(
                    sender.source,
                    None if of_sender.sends is None else of_sender.sends[number],
                    None if own.receives is None else own.receives[index],
                )
                for index, (sender, of_sender) in enumerate(zip(members, maps, strict=True))
            ]
            content = by_key[key] = assemble(fragments, member.shape, places)
        contents.append(content)
    return contents


def _summed(
    members: Sequence[Member], sends: tuple[Region, ...] | None, places: Places
) -> list[Content]:
    """The contents after a collective that sums different partials of the same block."""
    shape = members[0].source.place.extent
    whole = assemble([fragment(m.source, None, None) for m in members], shape, places)
    contents: list[Content] = []
    for number, member in enumerate(members):
        part = fragment(whole, None if sends is None else sends[number], None)
        if extent(part.region) != member.shape:
            problem = f"gets a block of shape {list(extent(part.region))}"
            raise Unsound(f"{problem}, its register has shape {list(member.shape)}")
        contents.append(
            whole
            if sends is None
            else Content(part.tensor, places.of(part.first, part.last, part.region))
        )
    return contents


def sent(exchange: Exchange, source: Content | None) -> dict[int, list[Fragment]]:
    """The fragments that go to each peer, in the order of the exchange."""
    fragments: dict[int, list[Fragment]] = {}
    for part in exchange.sends:
        if source is None:
            raise Unsound("sends something and has no source")
        fragments.setdefault(part.peer, []).append(fragment(source, part.region, None))
    return fragments


def arrived(
    exchange: Exchange, source: Content | None, received: Mapping[int, Sequence[Fragment]]
) -> list[Fragment]:
    """All fragments that an exchange adds to its target: local copies, then messages.

    ``received``: the fragments from each peer, in the order in which it lists them. Raises Unsound
    if they differ from the regions that the exchange expects.
    """
    fragments: list[Fragment] = []
    for kept in exchange.kept:
        if source is None:
            raise Unsound("keeps something and has no source")
        fragments.append(fragment(source, kept.source, kept.target))
    queues = {peer: list(from_peer) for peer, from_peer in received.items()}
    for part in exchange.receives:
        if not queues.get(part.peer):
            raise Unsound(f"expects more than {part.peer} sends")
        received_part = queues[part.peer].pop(0)
        if extent(received_part.region) != extent(part.region):
            expected, sent_shape = list(extent(part.region)), list(extent(received_part.region))
            problem = f"expects a block of shape {expected} from {part.peer}"
            raise Unsound(f"{problem}, which sends {sent_shape}")
        fragments.append(received_part._replace(at=part.region))
    if any(queues.values()):
        peer = next(peer for peer, queue in queues.items() if queue)
        raise Unsound(f"{peer} sends more than is expected")
    return fragments
