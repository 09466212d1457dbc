"""Check that the backward pass of a communication is the transpose of its forward pass.

All communication is one kind of linear map: of the members of a group, member i adds region
``receives[j]`` of its target up from region ``sends[i]`` of the source of each member j. Its matrix
has a 1 where an element goes from one register to another, and its transpose goes from there to
here. So a rank's part of the transpose sends what that of the map receives, in the same order, and
the other way round; and where that is so on all ranks, the whole is the transpose of the whole.
"""

from __future__ import annotations

from typing import NamedTuple

from pcg.placement.region import Region
from runtime.program.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    Communication,
    Exchange,
    Group,
    ReduceScatter,
)


class LinearMap(NamedTuple):
    """What of its source a rank gives to each member, and where it adds what comes from each;
    None: all of it, to or from all."""

    group: Group
    sends: tuple[Region, ...] | None
    receives: tuple[Region, ...] | None


def linear_map(collective: Collective) -> LinearMap:
    """A collective as the linear map that it is."""
    match collective:
        case AllReduce(group=group):
            return LinearMap(group, None, None)
        case AllGather(group=group, places=places):
            return LinearMap(group, None, places)
        case ReduceScatter(group=group, places=places):
            return LinearMap(group, places, None)
        case AllToAll(group=group, sends=sends, receives=receives):
            return LinearMap(group, sends, receives)


def is_transposed(there: Communication, back: Communication) -> bool:
    """Whether one is the transpose of the other."""
    if (there.source, there.target) != (back.target, back.source):
        return False
    if there.position != back.position:
        return False
    if isinstance(there, Exchange) or isinstance(back, Exchange):
        return (
            isinstance(there, Exchange)
            and isinstance(back, Exchange)
            and there.sends == back.receives
            and there.receives == back.sends
            and there.active == back.active
            and [(k.source, k.target) for k in there.kept]
            == [(k.target, k.source) for k in back.kept]
        )
    one, other = linear_map(there), linear_map(back)
    return one == LinearMap(other.group, other.receives, other.sends)
