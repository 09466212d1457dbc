"""Disjoint sets: which things are one by the equalities that were stated.

Method: union and find (Galler and Fischer, 1964). Nothing is balanced or compressed, as sets are
those of a few operators; an operation takes as many steps as equalities lie on its way.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Thing = TypeVar("Thing", bound=Hashable)


class DisjointSets(Generic[Thing]):
    """Things in sets, at first each alone."""

    def __init__(self) -> None:
        self._parents: dict[Thing, Thing] = {}

    def root(self, thing: Thing) -> Thing:
        """What stands for the set of a thing."""
        while (parent := self._parents.get(thing, thing)) != thing:
            thing = parent
        return thing

    def join(self, a: Thing, b: Thing) -> None:
        """Make one of the sets of two things, for which the root of ``b`` then stands."""
        self._parents.setdefault(b, b)
        self._parents[self.root(a)] = self.root(b)

    def sets(self) -> dict[Thing, set[Thing]]:
        """The things that were spoken of, by what stands for their sets."""
        members: dict[Thing, set[Thing]] = {}
        for thing in self._parents:
            members.setdefault(self.root(thing), set()).add(thing)
        return members
