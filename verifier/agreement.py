"""Agreement of types: the typings under which both sides of a pair have the same parallel types.

A side has one typing for each choice of the operands that carry partials. Of all pairs of typings,
one of each side, the pair with the fewest conditions beyond the left side is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pcg.graph.graph import Graph
from pcg.graph.pairs import Outputs
from verifier.sides import REMEMBERED, SideKey, side_typings
from verifier.trusted.sizes.degrees import Powers, Typing, typings
from verifier.trusted.sizes.types import differences, residual
from verifier.witness import solve


@dataclass(frozen=True)
class Agreement:
    """A typing of each side, by number, under which both have the same types. ``conditions``: the
    conditions of the right typing beyond those of the left."""

    numbers: tuple[int, int]
    conditions: tuple[str, ...]


WHOLE = Agreement((0, 0), ())
"""The agreement for tensors that are neither cut nor copied."""


def typed_sides(left: Outputs, right: Outputs) -> tuple[Mapping[int, Typing], Mapping[int, Typing]]:
    """The satisfiable typings of both sides, by number.

    Raises OperatorError or ValueError if a side has no type, and Undecided if its degrees are not
    solved for.
    """
    return _typed_side(SideKey(left)), _typed_side(SideKey(right))


@lru_cache(REMEMBERED)
def _typed_side(side: SideKey) -> Mapping[int, Typing]:
    return {
        n: typing for n, typing in enumerate(side_typings(side)) if witness([typing]) is not None
    }


def agree(
    lefts: Mapping[int, Typing], rights: Mapping[int, Typing]
) -> tuple[Agreement, Mapping[str, int]] | None:
    """The pair of typings with the fewest conditions, and degrees that satisfy it. None if no pair
    is satisfiable."""
    options = [
        (residual(a, b), (i, j), (a, b)) for i, a in lefts.items() for j, b in rights.items()
    ]
    options.sort(key=lambda o: (len(o[0].equations), len(o[0].whole), o[0].texts, o[1]))
    for conditions, numbers, (a, b) in options:
        degrees = witness([a, b], differences(a, b))
        if degrees is not None:
            return Agreement(numbers, conditions.texts), degrees
    return None


def agree_alike(side: Outputs) -> tuple[Agreement, Mapping[str, int]] | None:
    """The same for two sides of the same structure: the first satisfiable typing. The others are
    not computed, since there may be very many."""
    for number, typing in enumerate(typings(Graph(side).nodes, side)):
        degrees = witness([typing])
        if degrees is not None:
            return Agreement((number, number), ()), degrees
    return None


def witness(typings: Sequence[Typing], extra: Sequence[Powers] = ()) -> Mapping[str, int] | None:
    """Degrees that satisfy all typings, and for which all products in ``extra`` are 1. None if none
    are found."""
    equations = [e for typing in typings for e in typing.equations] + list(extra)
    whole = [w for typing in typings for w in typing.whole]
    return solve(equations, whole, frozenset[str]().union(*(t.symbols for t in typings)))
