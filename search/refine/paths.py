"""Lower bounds of plans from the pieces of their operators, before their steps are listed.

Problem: most states of an annealing are slower than the limit, because of one bad resharding or
operator. They should be ruled out for less time than it takes to list the steps of their plans.

Method: the longest path of operators that read each other, forward and then backward, with the
resharding of each tensor that moves between two of them. The tensor comes from a device of the
first operator and goes to a device of the second. So the second starts after the end of the first
and of the resharding, and their gradients come back likewise. The path up to an operator is
extended by operators that read it, without resharding, before more of it is priced: a bad
resharding ends the sum early. Reshardings that were not priced before are left out at first.

Complexity: the operands of all operators, two or three times. A bound: no plan is faster. Exchanges
of weights' gradients, weights that move, and operators that wait for the same devices do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from search.cost.cost import NOTHING
from search.refine.pieces import OperatorPiece, OperatorPieces

_UNKNOWN = NOTHING, NOTHING
"""Stands for a resharding that was not priced yet."""


class _Edge(NamedTuple):
    """An operand that another operator makes: that operator's number, the port of the result, and
    the position among the reader's operands."""

    maker: int
    port: int
    position: int


class OperatorPaths:
    """The paths of operators of a graph that read each other."""

    def __init__(self, pieces: OperatorPieces) -> None:
        self._moves = pieces.moves
        makers = {
            value: (number, port)
            for number, values in enumerate(pieces.makes)
            for port, value in enumerate(values)
        }
        self._edges = [
            [_Edge(*makers[value], at) for at, value in enumerate(values) if value in makers]
            for values in pieces.reads
        ]
        self._makers = [tuple({edge.maker for edge in edges}) for edges in self._edges]

    def last(self, pieces: Sequence[OperatorPiece], limit: float) -> bool:
        """Whether a path takes ``limit`` seconds or longer. ``pieces``: of all operators."""
        after = self._after(pieces)
        is_longer, is_known = self._reach(pieces, after, limit, only_known=True)
        if not is_longer and not is_known:
            is_longer, _ = self._reach(pieces, after, limit, only_known=False)
        return is_longer

    def _after(self, pieces: Sequence[OperatorPiece]) -> list[float]:
        """For each operator, the longest path between the end of its forward pass and the start of
        its backward pass, without reshardings."""
        after = [0.0] * len(pieces)
        for number in range(len(pieces) - 1, -1, -1):
            piece = pieces[number]
            if piece.passes:
                seconds = after[number] + piece.forward_seconds + piece.backward_seconds
                for maker in self._makers[number]:
                    if seconds > after[maker]:
                        after[maker] = seconds
        return after

    def _reach(
        self,
        pieces: Sequence[OperatorPiece],
        after: Sequence[float],
        limit: float,
        *,
        only_known: bool,
    ) -> tuple[bool, bool]:
        """Whether a path takes ``limit`` seconds or longer, and whether all its reshardings are
        priced. ``only_known``: whether those that are not known yet are left out."""
        moves, is_known = self._moves, True
        ends: list[float] = []
        backs: list[float] = []
        for number, piece in enumerate(pieces):
            start, back, passes = 0.0, piece.late_seconds, piece.passes
            for maker, port, position in self._edges[number]:
                source = pieces[maker]
                end, rest = ends[maker], backs[maker]
                slots = source.results[port], piece.operands[position].slot
                if slots[0] != slots[1]:
                    movement = moves.get(slots, _UNKNOWN) if only_known else moves[slots]
                    if movement is _UNKNOWN:
                        is_known = False
                    elif movement is not None:
                        end += movement[0].shortest
                        rest += movement[1].shortest
                if end > start:
                    start = end
                if passes and source.passes and rest > back:
                    back = rest
            end = start + piece.forward_seconds
            back = back + piece.backward_seconds if passes else 0.0
            if end + after[number] + back >= limit:
                return True, is_known
            ends.append(end)
            backs.append(back)
        return False, is_known
