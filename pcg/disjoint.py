"""Disjoint sets: the classes of objects that are equal by stated equalities.

Method: union and find (Galler and Fischer, 1964), without balancing or path compression, since sets
are those of a few operators. Complexity: an operation is linear in the equalities on its path.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Thing = TypeVar("Thing", bound=Hashable)


class DisjointSets(Generic[Thing]):
    """A partition of objects into sets. At first, each is a set of its own."""

    def __init__(self) -> None:
        self._parents: dict[Thing, Thing] = {}

    def root(self, thing: Thing) -> Thing:
        """Return the representative of the set of an object."""
        while (parent := self._parents.get(thing, thing)) != thing:
            thing = parent
        return thing

    def join(self, a: Thing, b: Thing) -> None:
        """Merge the sets of two objects. The root of ``b`` represents the union."""
        self._parents.setdefault(b, b)
        self._parents[self.root(a)] = self.root(b)

    def sets(self) -> dict[Thing, set[Thing]]:
        """Return the sets of all objects that were joined, by their representatives."""
        members: dict[Thing, set[Thing]] = {}
        for thing in self._parents:
            members.setdefault(self.root(thing), set()).add(thing)
        return members
