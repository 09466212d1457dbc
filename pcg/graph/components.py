"""Connected components of an undirected graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def components(
    members: Sequence[int], beside: Callable[[int], Iterable[int]]
) -> list[tuple[int, ...]]:
    """Return the connected components among ``members``.

    Each component is ascending, and the components are in the order of their first members.
    ``beside`` returns the neighbours of a member; the relation has to be symmetric. Neighbours that
    are no members are ignored. Complexity: linear in members and neighbours.
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
