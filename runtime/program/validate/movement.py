"""Compute what registers hold after a communication."""

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
    """A rank's part of a collective. ``shape``: of its target."""

    rank: int
    instruction: Collective
    source: Content
    shape: tuple[int, ...]


def collected(members: Sequence[Member], places: Places) -> list[Content]:
    """What each member of a collective holds after it, worked out once for collectives that do the
    same to other tensors. Raises Unsound where that is no block of a tensor."""
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
    known = places.collected.get(key)
    if known is None:
        contents = _collected(members, maps, places)
        # With what the key knows by object, which has to live as long.
        places.collected[key] = maps, [content.place for content in contents]
        return contents
    return [Content(tensor, place) for place in known[1]]


def _collected(
    members: Sequence[Member], maps: Sequence[LinearMap], places: Places
) -> list[Content]:
    for own in maps:
        for side in (own.sends, own.receives):
            if side is not None and len(side) != len(members):
                raise Unsound(f"has {len(side)} regions, expected {len(members)}, one a member")
    if len({elements(side[0]) if (side := own.sends) else -1 for own in maps}) > 1:
        raise Unsound("members give parts of different sizes")
    alike = all(m.source.place.region == members[0].source.place.region for m in members) and all(
        own.sends == maps[0].sends for own in maps
    )
    if alike and maps[0].receives is None and all(own.receives is None for own in maps):
        return _summed(members, maps[0].sends, places)
    made: dict[object, Content] = {}
    contents: list[Content] = []
    for number, (member, own) in enumerate(zip(members, maps, strict=True)):
        # What all give to all is the same for members that put it in the same places.
        key = (number if maps[0].sends is not None else -1, own.receives, member.shape)
        content = made.get(key)
        if content is None:
            given = [
                fragment(
                    other.source,
                    None if theirs.sends is None else theirs.sends[number],
                    None if own.receives is None else own.receives[index],
                )
                for index, (other, theirs) in enumerate(zip(members, maps, strict=True))
            ]
            content = made[key] = assemble(given, member.shape, places)
        contents.append(content)
    return contents


def _summed(
    members: Sequence[Member], sends: tuple[Region, ...] | None, places: Places
) -> list[Content]:
    """What members hold after a collective on one block, of which each has other partials."""
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
    """What goes to each peer, in order."""
    fragments: dict[int, list[Fragment]] = {}
    for part in exchange.sends:
        if source is None:
            raise Unsound("sends something and has no source")
        fragments.setdefault(part.peer, []).append(fragment(source, part.region, None))
    return fragments


def arrived(
    exchange: Exchange, source: Content | None, received: Mapping[int, Sequence[Fragment]]
) -> list[Fragment]:
    """All that is added to the target of messages: what was kept and what has come, in the order in
    which both ends list it."""
    fragments: list[Fragment] = []
    for kept in exchange.kept:
        if source is None:
            raise Unsound("keeps something and has no source")
        fragments.append(fragment(source, kept.source, kept.target))
    left = {peer: list(given) for peer, given in received.items()}
    for part in exchange.receives:
        if not left.get(part.peer):
            raise Unsound(f"expects more than {part.peer} sends")
        got = left[part.peer].pop(0)
        if extent(got.region) != extent(part.region):
            own, theirs = list(extent(part.region)), list(extent(got.region))
            raise Unsound(f"expects a block of shape {own} from {part.peer}, which sends {theirs}")
        fragments.append(got._replace(at=part.region))
    if any(left.values()):
        peer = next(peer for peer, given in left.items() if given)
        raise Unsound(f"{peer} sends more than is expected")
    return fragments
