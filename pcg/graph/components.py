"""Connected components: the sets of members that hang together, directly or through others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def components(
    members: Sequence[int], beside: Callable[[int], Iterable[int]]
) -> list[tuple[int, ...]]:
    """The components among some numbers, each ascending, in the order of their first members.

    ``beside``: those that hang together with a member, in both directions; others than members are
    left out. Takes time in proportion to members and neighbours.
    """
    parts: list[tuple[int, ...]] = []
    left = set(members)
    for first in members:
        if first not in left:
            continue
        left.remove(first)
        part = [first]
        for member in part:
            near = left.intersection(beside(member))
            left -= near
            part += near
        parts.append(tuple(sorted(part)))
    return parts
