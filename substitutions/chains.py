"""Rules between chains of parallel operators on one tensor: what cancels and what commutes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from pcg.graph import Graph, Value
from substitutions.enumerate import DEGREE, MAX_RANK, move_chains
from substitutions.rule import operators_in, side_text
from verifier.trusted.degrees import Basis, Monomial, entries, typings

Side = tuple[Value, ...]


def chain_pairs() -> Iterator[tuple[Side, Side]]:
    """Chains of up to two operators with the same type, each against the shortest like it.

    All chains mean their input, so the type is all there is to compare.
    """
    for rank in range(MAX_RANK + 1):
        groups: dict[tuple[Monomial, ...], dict[str, Side]] = defaultdict(dict)
        for side in move_chains(rank):
            groups[_type(side)].setdefault(side_text(side), side)
        for members in groups.values():
            first, *others = sorted(members.values(), key=_order)
            for other in others:
                if _is_general(other, first):
                    yield other, first


def _is_general(left: Side, right: Side) -> bool:
    """Whether a pair is not another one with its degrees renamed or taken to be equal.

    Operators of equal degrees may cancel; those that only change places do so at any degrees.
    """
    degrees = re.findall(r"degree=(\w+)", side_text(left))
    if operators_in(right) < operators_in(left):
        return degrees == [DEGREE, DEGREE]
    return degrees == [f"{DEGREE}2", DEGREE]


def _order(side: Side) -> tuple[int, str]:
    return (operators_in(side), side_text(side))


def _type(side: Side) -> tuple[Monomial, ...]:
    """The type of a chain in terms of its input's; a chain imposes no equations."""
    (typing,) = typings(Graph(side).nodes, side)
    basis = Basis.of(typing.equations)
    return tuple(basis.reduce(entry) for entry in entries(typing.types[0]))
