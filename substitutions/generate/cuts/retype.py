"""Makes the types of a pair agree whose values do, by one parallel operator more.

Two tensors side by side as partials (join) mean their sum, but are no whole tensor. A candidate of
which only the types differ is tried again with one parallel operator on its output or on an input
of one side: so Add is found as Join then Reduce (the Unity paper, figure 11b).
"""

from __future__ import annotations

from collections.abc import Iterator

from pcg.graph.graph import Node
from pcg.graph.pairs import GraphPair
from substitutions.generate.algebra.enumerate import moves
from substitutions.rules.rule import operators_in

DEGREE = 2
"""Both sides of a pair have two operands or none: the degree is theirs, and no symbol."""
MOST_OPERATORS = 2

TYPES_DIFFER = "the types differ"
"""The reason that ``verifier.decide`` gives."""


def retyped(pair: GraphPair) -> Iterator[GraphPair]:
    """The pair with one parallel operator on the output of one side."""
    left, right = pair
    if len(left) != 1 or max(operators_in(left), operators_in(right)) > MOST_OPERATORS:
        return
    for move in moves(left[0].rank, DEGREE):
        yield (Node(move, left).value(),), right
        yield left, (Node(move, right).value(),)
