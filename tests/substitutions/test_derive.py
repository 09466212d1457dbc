"""Nothing is lost: the rules kept around an operator generate every other equality around it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import pytest

from pcg.graph import Graph, Value
from pcg.ops import OPERATORS
from substitutions.chains import chain_pairs
from substitutions.cuts import Decorated, Word, decorations
from substitutions.derive import basic_pairs
from substitutions.enumerate import Instance, instances
from substitutions.match import build, matches, rewrite
from substitutions.rule import Rule, input_ranks, side_text
from verifier.counterexample import instances as typed
from verifier.decide import Verdict, decide
from verifier.trusted.sizes import Sizes

Counts = frozenset[tuple[tuple[int, int], int]]
DEPTH = 8
SOME = [("relu", (1,)), ("relu", (2,)), ("matmul", (2, 2)), ("sum_loss", (2,)), ("split", (1,))]


def only(operator: str, ranks: tuple[int, ...]) -> Instance:
    return next(i for i in instances(OPERATORS[operator]) if i.ranks == ranks)


def groups(instance: Instance) -> list[list[Decorated]]:
    """The graphs around an instance that are typed alike, and so equal."""
    found: dict[object, list[Decorated]] = defaultdict(list)
    for graph in decorations(instance):
        found[graph.key].append(graph)
    return [group for group in found.values() if len(group) > 1]


def counts(instance: Instance, word: Word) -> Counts:
    """How many of each parallel operator; what cuts and what joins again cancel."""
    ranks = (*instance.ranks, *instance.outputs)
    total: Counter[tuple[int, int]] = Counter()
    for edge, entry, power in word:
        total[edge, entry] += abs(power) if entry >= 2 * ranks[edge] else power
    return frozenset((place, n) for place, n in total.items() if n)


def stepped(state: Counts, taken: Counts, given: Counts, counted: set[tuple[int, int]]):
    """The state after a rule, or None where it takes a copy or a sum that is not there."""
    have = dict(state)
    if any(place in counted and have.get(place, 0) < n for place, n in taken):
        return None
    for place, n in taken:
        have[place] = have.get(place, 0) - n
    for place, n in given:
        have[place] = have.get(place, 0) + n
    small = all(abs(n) <= 3 for n in have.values())
    return frozenset((place, n) for place, n in have.items() if n) if small else None


def reached(
    start: Counts, wanted: set[Counts], rules, counted: set[tuple[int, int]]
) -> set[Counts]:
    """The wanted states that some rules lead to, one after the other."""
    known, frontier = {start}, [start]
    for _ in range(DEPTH):
        if wanted <= known:
            break
        nexts = {stepped(s, a, b, counted) for s in frontier for a, b in rules}
        frontier = [s for s in nexts if s is not None and s not in known]
        known.update(frontier)
    return known & wanted


@pytest.mark.parametrize(("operator", "ranks"), SOME)
def test_every_equality_follows_from_the_rules_kept(operator, ranks):
    instance = only(operator, ranks)
    every = groups(instance)
    words = {graph.outputs: graph.word for group in every for graph in group}
    sides = [
        tuple(counts(instance, words[side]) for side in pair) for pair in basic_pairs(instance)
    ]
    rules = sides + [pair[::-1] for pair in sides]
    edges = (*instance.ranks, *instance.outputs)
    counted = {(e, n) for e, rank in enumerate(edges) for n in (2 * rank, 2 * rank + 1)}
    for group in every:
        states = {counts(instance, graph.word) for graph in group}
        start = counts(instance, group[0].word)
        assert reached(start, states, rules, counted) == states


@pytest.mark.parametrize(("operator", "ranks"), SOME)
def test_no_rule_kept_follows_from_the_smaller_ones(operator, ranks):
    kept = basic_pairs(only(operator, ranks))
    assert 0 < len(kept) <= 12
    assert len(set(kept)) == len(kept)
    assert len({frozenset(pair) for pair in kept}) == len(kept)


@pytest.mark.parametrize(("operator", "ranks"), SOME)
def test_what_is_kept_is_proved(operator, ranks):
    for left, right in basic_pairs(only(operator, ranks)):
        assert decide(left, right).verdict is Verdict.PROVED, (left, right)


def rules_of(pairs: Iterable[tuple[tuple[Value, ...], tuple[Value, ...]]]) -> list[Rule]:
    made = [Rule(side_text(a), input_ranks((*a, *b)), a, b) for a, b in pairs]
    return [way for rule in made for way in (rule, rule.reversed) if way.is_applicable]


def around(graph: Graph, rules: list[Rule], degree: int) -> set[Graph]:
    """The graphs that one application of a rule makes, free degrees taken to be ``degree``."""
    found: set[Graph] = set()
    for rule in rules:
        free = dict.fromkeys(rule.free_symbols, degree)
        for match in matches(rule, graph):
            outputs = build(rule, match, free)
            if outputs is not None:
                found.add(rewrite(graph, match, outputs))
    return found


def test_equalities_around_a_relu_are_reached_by_applying_rules():
    """The same on graphs: rewriting one side, and the other, meets in the middle."""
    instance = only("relu", (1,))
    ranks = {1}
    chains = [p for p in chain_pairs() if {rank for _, rank in input_ranks(p[0])} == ranks]
    rules = rules_of([*basic_pairs(instance), *chains])
    for group in groups(instance):
        first, *others = sorted(group, key=lambda g: (len(g.word), g.word))
        for other in others[:2]:
            sizes = Sizes()
            for node in Graph((*first.outputs, *other.outputs)).nodes:
                sizes.visit(node)
            degrees = dict(decide(first.outputs, other.outputs).degrees)
            pair = next(typed(first.outputs, other.outputs, sizes, degrees))
            assert _meet(pair.left, pair.right, rules, degrees["k"]), (first, other)


def _meet(left: Graph, right: Graph, rules: list[Rule], degree: int) -> bool:
    near: tuple[set[Graph], set[Graph]] = ({left}, {right})
    frontiers = [{left}, {right}]
    for _ in range(3):
        for side in (0, 1):
            new = {g for old in frontiers[side] for g in around(old, rules, degree)} - near[side]
            near[side].update(new)
            frontiers[side] = new
            if near[0] & near[1]:
                return True
    return False
