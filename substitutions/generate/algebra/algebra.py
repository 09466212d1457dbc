"""Enumerates algebraic candidates: pairs of graphs of computing operators of equal values.

Each world (``substitutions.generate.algebra.worlds``) is searched on its own, and its candidates
come back as text, which crosses between processes.
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
from substitutions.rules.candidate import Candidate, Enumerated

FIELD = PrimeField(generic=True)

MOST = 6
"""Terms beside the least of a class, for all pairs of them to be candidates; where there are more,
each is one with the least."""


def algebra(world: AlgebraWorld, size: int, jobs: int = 1) -> Enumerated:
    """The candidates among the graphs of up to ``size`` operators of a world. ``jobs``: processes
    to share the work where it is much."""
    search = PairSearch(ClassTable(world, FIELD), min(size, world.most), jobs)
    candidates: dict[Candidate, None] = {}
    for candidate, pair in _candidates(search):
        if _has_one_rank(candidate) and _reads(candidate) <= INPUTS and _binds(pair):
            candidates.setdefault(candidate)
    return Enumerated(search.graphs, search.distinct, tuple(_distinct(candidates)))


def _distinct(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Those that are no other with inputs or symbols renamed, or taken to be equal."""
    seen: dict[tuple[int, str, bool], list[tuple[str, ...]]] = defaultdict(list)
    texts = ((candidate, f"{candidate.left} == {candidate.right}") for candidate in candidates)
    named = [(c, _NAME.sub("_", text), tuple(_NAME.findall(text))) for c, text in texts]
    for candidate, shape, names in sorted(named, key=lambda n: (-len(set(n[2])), n[0].steps)):
        known = seen[candidate.steps, shape, bool(candidate.ones)]
        if not any(_renames(other, names) for other in known):
            known.append(names)
            yield candidate


_NAME = re.compile(r"(?<![\w*])(?:[a-z]\b(?![(=])|(?<==)[a-z][\w*]*)")
"""The name of an input, or the symbols of an attribute."""


def _renames(general: Sequence[str], special: Sequence[str]) -> bool:
    """Whether equal names of the first are equal names of the second."""
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
            # By way of the least term it takes two steps, if both are rules.
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
    """Whether every input has one rank on both sides."""
    return len({name for name, _ in candidate.inputs}) == len(candidate.inputs)


def _reads(candidate: Candidate) -> int:
    """How often a side reads one input, a shared operator counted for each of its users. Beyond
    four, as in powers of a matrix, a proof has to try too many orders of equal factors."""
    return max(
        (
            len(re.findall(rf"\b{name}\b", side))
            for name, _ in candidate.inputs
            for side in (candidate.left, candidate.right)
        ),
        default=0,
    )


def _binds(pair: GraphPair) -> bool:
    """Whether one side has all inputs, of which there are some, and the other none of its own; and
    no side has an output twice."""
    left, right = (_names(side) for side in pair)
    apart = all(len(set(side)) == len(side) for side in pair)
    different = pair[0] != pair[1] and bool(left | right)
    return apart and different and (left <= right or right <= left)


def _names(side: Outputs) -> frozenset[str]:
    return frozenset(node.leaf.name for node in Graph(side).leaves)
