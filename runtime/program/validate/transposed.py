"""Check that the backward pass of a communication is the transpose of its forward pass.

All communication is one kind of linear map. Member i of a group adds to region ``receives[j]`` of
its target the region ``sends[i]`` of the source of each member j. The matrix of the map has a 1
where an element goes from one register to another. In the transpose the element goes back. So each
rank's part of the transpose sends the regions that its part of the map receives, in the same order,
and receives the regions that it sends. If this holds on all ranks, the whole communication is the
transpose of the other.
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
    """A rank's part of a communication in a group. ``sends[j]``: the region of its source that goes
    to member j. ``receives[j]``: the region of its target to which the part of member j is added.
    None stands for the whole register, to or from each member."""

    group: Group
    sends: tuple[Region, ...] | None
    receives: tuple[Region, ...] | None


def linear_map(collective: Collective) -> LinearMap:
    """The linear map of a collective."""
    match collective:
        case AllReduce(group=group):
            return LinearMap(group, None, None)
        case AllGather(group=group, places=places):
            return LinearMap(group, None, places)
        case ReduceScatter(group=group, places=places):
            return LinearMap(group, places, None)
        case AllToAll(group=group, sends=sends, receives=receives):
            return LinearMap(group, sends, receives)


def is_transposed(forward: Communication, backward: Communication) -> bool:
    """Whether a rank's part of one communication is the transpose of its part of the other."""
    if (forward.source, forward.target) != (backward.target, backward.source):
        return False
    if forward.position != backward.position:
        return False
    if isinstance(forward, Exchange) or isinstance(backward, Exchange):
        return (
            isinstance(forward, Exchange)
            and isinstance(backward, Exchange)
            and forward.sends == backward.receives
            and forward.receives == backward.sends
            and forward.active == backward.active
            and [(k.source, k.target) for k in forward.kept]
            == [(k.target, k.source) for k in backward.kept]
        )
    transpose = linear_map(backward)
    return linear_map(forward) == LinearMap(transpose.group, transpose.receives, transpose.sends)
