"""Algebraic candidates: pairs of graphs of computing operators that have equal values.

Each world (``substitutions.worlds``) is searched on its own, and its candidates come back as text,
which crosses between processes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from pcg.graph import Graph, Value
from pcg.ring import PrimeField
from substitutions.candidate import Candidate, Enumerated
from substitutions.pairs import Pair, Search
from substitutions.rule import input_ranks
from substitutions.table import Table
from substitutions.worlds import World

FIELD = PrimeField(generic=True)

MOST = 6
"""Terms beside the least of a class, for all pairs of them to be candidates; where there are more,
each is one with the least."""


def algebra(world: World, size: int) -> Enumerated:
    """The candidates among the graphs of up to ``size`` operators of a world."""
    search = Search(Table(world, FIELD), min(size, world.most))
    found: dict[Candidate, None] = {}
    for pair, steps in _pairs(search):
        if _has_one_rank(pair) and _binds(pair):
            found.setdefault(Candidate.of(pair, "algebra", steps))
    return Enumerated(search.graphs, search.distinct, tuple(_distinct(found)))


def _distinct(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Those that are no other with inputs or symbols renamed, or taken to be equal."""
    seen: dict[tuple[int, str], list[tuple[str, ...]]] = defaultdict(list)
    erased = [(candidate, _NAME.sub("_", _text(candidate))) for candidate in candidates]
    named = [(c, shape, tuple(_NAME.findall(_text(c)))) for c, shape in erased]
    for candidate, shape, names in sorted(named, key=lambda n: (-len(set(n[2])), n[0].steps)):
        known = seen[candidate.steps, shape]
        if not any(_renames(other, names) for other in known):
            known.append(names)
            yield candidate


_NAME = re.compile(r"(?<![\w*])(?:[a-z]\b(?![(=])|(?<==)[a-z][\w*]*)")
"""The name of an input, or the symbols of an attribute."""


def _text(candidate: Candidate) -> str:
    return f"{candidate.left} == {candidate.right}"


def _renames(general: Sequence[str], special: Sequence[str]) -> bool:
    """Whether equal names of the first are equal names of the second."""
    image: dict[str, str] = {}
    return all(image.setdefault(a, b) == b for a, b in zip(general, special, strict=True))


def _pairs(search: Search) -> Iterator[tuple[Pair, int]]:
    for group in search.groups():
        least, *others = group
        for i, member in enumerate(others):
            yield search.pair(member, least), 0
            for other in others[:i] if least.size and len(others) <= MOST else ():
                # By way of the least term it takes two steps, unless types stand in the way.
                yield search.pair(member, other), 2
    for pair in (*search.mirrored(), *search.several()):
        yield pair, 0


def _has_one_rank(pair: Pair) -> bool:
    """Whether every input has one rank on both sides."""
    ranks = input_ranks((*pair[0], *pair[1]))
    return len({name for name, _ in ranks}) == len(ranks)


def _binds(pair: Pair) -> bool:
    """Whether one side has all inputs, of which there are some, and the other none of its own."""
    left, right = (_names(side) for side in pair)
    return pair[0] != pair[1] and bool(left | right) and (left <= right or right <= left)


def _names(side: tuple[Value, ...]) -> frozenset[str]:
    return frozenset(node.leaf.name for node in Graph(side).leaves)
