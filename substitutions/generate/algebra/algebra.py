"""Enumerates algebraic candidates: pairs of graphs of compute operators with equal values.

Each world (``substitutions.generate.algebra.worlds``) is searched independently. Its candidates are
returned as text, which can be sent between processes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from pcg.graph.graph import Graph
from pcg.graph.pairs import Outputs
from pcg.readings.ring import PrimeField
from substitutions.generate.algebra.selection import GraphPair, PairSearch, PlacedTerm
from substitutions.generate.algebra.table import ClassTable
from substitutions.generate.algebra.terms import INPUTS
from substitutions.generate.algebra.worlds import AlgebraWorld
from substitutions.rules.candidate import Candidate, Enumeration

FIELD = PrimeField(generic=True)

MOST = 6
"""The most terms of a class, besides the least, of which all pairs are candidates. If there are
more, only their pairs with the least term are."""


def algebra(world: AlgebraWorld, size: int, jobs: int = 1) -> Enumeration:
    """The candidates among the graphs of up to ``size`` operators of a world. ``jobs``: the number
    of processes that share the work if it is much."""
    search = PairSearch(ClassTable(world, FIELD), min(size, world.most), jobs)
    candidates: dict[Candidate, None] = {}
    for candidate, pair in _candidates(search):
        if _has_one_rank(candidate) and _reads(candidate) <= INPUTS and _binds(pair):
            candidates.setdefault(candidate)
    return Enumeration(search.graphs, search.distinct, tuple(_distinct(candidates)))


def _distinct(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield the candidates that are no other candidate with inputs or symbols renamed or
    identified."""
    seen: dict[tuple[int, str, bool], list[tuple[str, ...]]] = defaultdict(list)
    texts = ((candidate, f"{candidate.left} == {candidate.right}") for candidate in candidates)
    named = [(c, _NAME.sub("_", text), tuple(_NAME.findall(text))) for c, text in texts]
    for candidate, shape, names in sorted(named, key=lambda n: (-len(set(n[2])), n[0].steps)):
        known = seen[candidate.steps, shape, bool(candidate.ones)]
        if not any(_renames(other, names) for other in known):
            known.append(names)
            yield candidate


_NAME = re.compile(r"(?<![\w*])(?:[a-z]\b(?![(=])|(?<==)[a-z][\w*]*)")
"""Matches the name of an input, or the value of an attribute that is a product of symbols."""


def _renames(general: Sequence[str], special: Sequence[str]) -> bool:
    """Whether ``special`` is ``general`` with names replaced: equal names by equal names."""
    image: dict[str, str] = {}
    return all(image.setdefault(a, b) == b for a, b in zip(general, special, strict=True))


def _candidates(search: PairSearch) -> Iterator[tuple[Candidate, GraphPair]]:
    for group in search.groups():
        least, *others = group
        for member in others:
            yield _candidate(search, member, least)
        if not least.size or len(others) > MOST:
            continue
        for i, j in combinations(range(len(others)), 2):
            # If both pairs with the least term are rules, this pair follows from them in two steps.
            candidate, pair = _candidate(search, others[j], others[i])
            yield replace(candidate, steps=2), pair
    for pair in (*search.mirrored(), *search.several()):
        yield Candidate.of(pair, "algebra"), pair


def _candidate(
    search: PairSearch, left: PlacedTerm, right: PlacedTerm
) -> tuple[Candidate, GraphPair]:
    pair = search.pair(left, right)
    return replace(Candidate.of(pair, "algebra"), ones=search.ones(left, right)), pair


def _has_one_rank(candidate: Candidate) -> bool:
    """Whether every input has the same rank on both sides."""
    return len({name for name, _ in candidate.inputs}) == len(candidate.inputs)


def _reads(candidate: Candidate) -> int:
    """How often a side reads the same input, at most; a shared operator counts once per user. With
    more than four reads, as in powers of a matrix, a proof has too many orders of equal factors to
    try."""
    return max(
        (
            len(re.findall(rf"\b{name}\b", side))
            for name, _ in candidate.inputs
            for side in (candidate.left, candidate.right)
        ),
        default=0,
    )


def _binds(pair: GraphPair) -> bool:
    """Whether the sides differ, have inputs, one side has all inputs of the other, and neither has
    the same output twice."""
    left, right = (_names(side) for side in pair)
    apart = all(len(set(side)) == len(side) for side in pair)
    different = pair[0] != pair[1] and bool(left | right)
    return apart and different and (left <= right or right <= left)


def _names(side: Outputs) -> frozenset[str]:
    return frozenset(node.leaf.name for node in Graph(side).leaves)
