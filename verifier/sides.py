"""Remembers the typings of a side of a rule, each worked out once.

A proof, the search for instances, both directions of a rule and what is like it ask for them.
"""

from __future__ import annotations

from functools import lru_cache

from pcg.graph.graph import Graph
from pcg.graph.pairs import Outputs
from verifier.trusted.sizes.degrees import Typing, typings

REMEMBERED = 1 << 8
"""Sides of which the typings are kept."""


class Written:
    """A side as it is written. Nodes are equal whose operands commute, and a typing tells their
    order: ``x.d0 / y.d0`` is 1, or ``y.d0 / x.d0``; as certificates and conditions have it."""

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
            isinstance(other, Written)
            and self._outputs == other._outputs
            and self._steps == other._steps
        )

    def __hash__(self) -> int:
        return hash((self._steps, self._outputs))


@lru_cache(REMEMBERED)
def side_typings(side: Written) -> tuple[Typing, ...]:
    """All typings of a side, by number. Raises what ``typings`` does."""
    return tuple(typings(side.nodes, side.side))
