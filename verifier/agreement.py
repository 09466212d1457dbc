"""Whether two sides have the same types wherever both have one.

A side may be typed in several ways, one for each choice of the operands that carry partials: of
those of both sides, the pair that asks for least is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pcg.graph import Graph, Value
from verifier.trusted.degrees import Monomial, Typing, typings
from verifier.trusted.types import differences, residual
from verifier.witness import solve


@dataclass(frozen=True)
class Agreement:
    """A typing of each side, by number, under which both have the same types; ``conditions``:
    what the right one asks beyond the left."""

    numbers: tuple[int, int]
    conditions: tuple[str, ...]


WHOLE = Agreement((0, 0), ())
"""Of tensors that are neither cut nor copied."""


def typed_sides(
    left: tuple[Value, ...], right: tuple[Value, ...]
) -> tuple[Mapping[int, Typing], Mapping[int, Typing]]:
    """The typings of both sides that some degrees satisfy, by number.

    Raises OperatorError or ValueError where a side has no type, and Undecided.
    """
    found = [
        {n: t for n, t in enumerate(typings(Graph(side).nodes, side)) if witness([t]) is not None}
        for side in (left, right)
    ]
    return found[0], found[1]


def agree(
    lefts: Mapping[int, Typing], rights: Mapping[int, Typing]
) -> tuple[Agreement, Mapping[str, int]] | None:
    """The typings that ask for least, with degrees that satisfy them; None if there are none."""
    options = [
        (residual(a, b), (i, j), (a, b)) for i, a in lefts.items() for j, b in rights.items()
    ]
    options.sort(key=lambda o: (len(o[0].equations), len(o[0].whole), o[0].texts, o[1]))
    for asked, numbers, (a, b) in options:
        degrees = witness([a, b], differences(a, b))
        if degrees is not None:
            return Agreement(numbers, asked.texts), degrees
    return None


def witness(found: Sequence[Typing], extra: Sequence[Monomial] = ()) -> Mapping[str, int] | None:
    """Degrees that satisfy some typings, and for which what is in ``extra`` is 1."""
    equations = [e for typing in found for e in typing.equations] + list(extra)
    whole = [w for typing in found for w in typing.whole]
    return solve(equations, whole, frozenset[str]().union(*(t.symbols for t in found)))
