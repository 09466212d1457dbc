"""The rewrites of a graph by a single rule: the steps of random walks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from pcg.graph.graph import Graph
from search.cost.derivation import Applied
from search.substitute.algebra import is_usable
from substitutions.rules.match import build, matches
from substitutions.rules.rule import Rule


def steps_from(graph: Graph, rules: Iterable[Rule], degrees: Sequence[int]) -> Iterator[Applied]:
    """Every step that a rule of the library takes from a graph, in both directions, with any of
    some degrees for those that the rule leaves free."""
    for rule in (way for one in rules for way in (one, one.reversed)):
        if not is_usable(rule):
            continue
        symbols = sorted(rule.free_symbols)
        for match in matches(rule, graph):
            for values in product(degrees, repeat=len(symbols)):
                free = dict(zip(symbols, values, strict=True))
                made = build(rule, match, free)
                if made is not None and made != match.outputs:
                    yield Applied(rule, match, free, made)
