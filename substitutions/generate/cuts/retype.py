"""Makes the types of a pair with equal values agree, by one more parallel operator.

Two tensors side by side as partials (join) mean their sum, but have another type than the sum. A
candidate whose types differ is tried again with one parallel operator on the output of one side. So
Add is found to be Join then Reduce (the Unity paper, figure 11b).
"""

from __future__ import annotations

from collections.abc import Iterator

from pcg.graph.graph import Node
from pcg.graph.pairs import GraphPair
from substitutions.generate.algebra.enumerate import moves
from substitutions.rules.rule import operators_in

DEGREE = 2
"""The degree of the parallel operator: join has two operands, so the degree is a number and no
symbol."""
MOST_OPERATORS = 2

TYPES_DIFFER = "the types differ"
"""The reason that ``verifier.decide`` gives for such a pair."""


def retyped(pair: GraphPair) -> Iterator[GraphPair]:
    """Yield the pair with one parallel operator on the output of one side."""
    left, right = pair
    if len(left) != 1 or max(operators_in(left), operators_in(right)) > MOST_OPERATORS:
        return
    for move in moves(left[0].rank, DEGREE):
        yield (Node(move, left).value(),), right
        yield left, (Node(move, right).value(),)
