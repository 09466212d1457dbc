"""Algebraic candidates: pairs of graphs of computing operators that have equal values.

Each world (``substitutions.worlds``) is searched on its own, and its candidates come back as text,
which crosses between processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from pcg.graph import Graph, Value
from pcg.ring import PrimeField
from substitutions.candidate import NAME, Candidate, Enumerated
from substitutions.pairs import Placed, Search
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
    for candidate in _candidates(search):
        if _has_one_rank(candidate) and _binds(candidate.parse()):
            found.setdefault(candidate)
    return Enumerated(search.graphs, search.distinct, tuple(_distinct(found)))


def _distinct(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Those that are no other with inputs or symbols renamed, or taken to be equal."""
    seen: dict[tuple[int, str, bool], list[tuple[str, ...]]] = defaultdict(list)
    named = [(c, c.outline, _names_in(c)) for c in candidates]
    for candidate, shape, names in sorted(named, key=lambda n: (-len(set(n[2])), n[0].steps)):
        known = seen[candidate.steps, shape, bool(candidate.ones)]
        if not any(_renames(other, names) for other in known):
            known.append(names)
            yield candidate


def _names_in(candidate: Candidate) -> tuple[str, ...]:
    return tuple(NAME.findall(f"{candidate.left} == {candidate.right}"))


def _renames(general: Sequence[str], special: Sequence[str]) -> bool:
    """Whether equal names of the first are equal names of the second."""
    image: dict[str, str] = {}
    return all(image.setdefault(a, b) == b for a, b in zip(general, special, strict=True))


def _candidates(search: Search) -> Iterator[Candidate]:
    for group in search.groups():
        least, *others = group
        direct = [_candidate(search, member, least) for member in others]
        yield from direct
        if not least.size or len(others) > MOST:
            continue
        for i, j in combinations(range(len(others)), 2):
            # By way of the least term it takes two steps, if both are rules.
            found = _candidate(search, others[j], others[i])
            yield replace(found, steps=2, via=(direct[i].outline, direct[j].outline))
    for pair in (*search.mirrored(), *search.several()):
        yield Candidate.of(pair, "algebra")


def _candidate(search: Search, left: Placed, right: Placed) -> Candidate:
    found = Candidate.of(search.pair(left, right), "algebra")
    return replace(found, ones=search.ones(left, right))


def _has_one_rank(candidate: Candidate) -> bool:
    """Whether every input has one rank on both sides."""
    return len({name for name, _ in candidate.inputs}) == len(candidate.inputs)


def _binds(pair: Pair) -> bool:
    """Whether one side has all inputs, of which there are some, and the other none of its own."""
    left, right = (_names(side) for side in pair)
    return pair[0] != pair[1] and bool(left | right) and (left <= right or right <= left)


def _names(side: tuple[Value, ...]) -> frozenset[str]:
    return frozenset(node.leaf.name for node in Graph(side).leaves)
