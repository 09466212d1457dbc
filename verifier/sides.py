"""Caches the typings of a side of a rule.

They are needed by a proof, by the search for instances, and by both directions of a rule.
"""

from __future__ import annotations

from functools import lru_cache

from pcg.graph.graph import Graph
from pcg.graph.pairs import Outputs
from verifier.trusted.sizes.degrees import Typing, typings

REMEMBERED = 1 << 8
"""The number of sides whose typings are cached."""


class SideKey:
    """A side as a cache key that respects the order of operands.

    Nodes are equal if they differ only in the order of commuting operands. Their typings may
    differ, as in the equation ``x.d0 / y.d0 = 1`` or ``y.d0 / x.d0 = 1``, and certificates contain
    the text of these equations.
    """

    def __init__(self, side: Outputs) -> None:
        self.side = side
        self.nodes = Graph(side).nodes
        place = {node: number for number, node in enumerate(self.nodes)}
        self._steps = tuple(
            (node.call, tuple((place[v.node], v.port) for v in node.inputs)) for node in self.nodes
        )
        self._outputs = tuple((place[v.node], v.port) for v in side)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SideKey)
            and self._outputs == other._outputs
            and self._steps == other._steps
        )

    def __hash__(self) -> int:
        return hash((self._steps, self._outputs))


@lru_cache(REMEMBERED)
def side_typings(side: SideKey) -> tuple[Typing, ...]:
    """All typings of a side, by number. Raises what ``typings`` does."""
    return tuple(typings(side.nodes, side.side))
