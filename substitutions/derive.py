"""The rules around one operator that do not follow from smaller ones.

Graphs with the same key are typed alike and equal. Which of those equalities are worth a rule is a
word problem: a graph is a word of parallel operators on edges; partition and combine on an edge
cancel, and operators on one edge commute (rules of their own), so a word is a vector of integers,
with counts of replicate and reduce, which nothing undoes, never negative. A rule replaces one
vector by another. An equality that earlier rules reach in a few steps is derived, and left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from pcg.graph import Value
from substitutions.cuts import Decorated, Key, Word, decorations
from substitutions.enumerate import Instance

Place = tuple[int, int]
"""(edge, entry of its type)."""
Pair = tuple[tuple[Value, ...], tuple[Value, ...]]
_Step = tuple[int, int, int]
"""(what has to be added for the counts that it takes to overflow, their top bits, change)."""

MAX_STEPS = 3
LIMIT = 2
"""Counts beyond are not followed."""
WIDTH, ZERO, TOP = 5, 8, 16


def basic_pairs(instance: Instance) -> list[Pair]:
    """Equalities around an instance that generate all others, smallest first."""
    groups: dict[Key, list[Decorated]] = defaultdict(list)
    for graph in decorations(instance):
        groups[graph.key].append(graph)
    ordered = sorted((g for g in groups.values() if len(g) > 1), key=_size)
    steps = _Steps(instance)
    found: dict[Pair, None] = {}
    for group in ordered:
        for left, right in steps.new_equalities(sorted(group, key=_order)):
            found[left.outputs, right.outputs] = None
    return list(found)


def _order(graph: Decorated) -> tuple[int, int, Word]:
    """Small graphs first; among equals those that apply to whole tensors, with operators that cut
    before and operators that join after."""
    inputs = len(graph.outputs[0].node.inputs)
    undone = sum((power < 0) == (edge < inputs) for edge, _, power in graph.word)
    return (len(graph.word), undone, graph.word)


def _size(group: Sequence[Decorated]) -> tuple[int, list[tuple[int, int, Word]]]:
    """Groups with small equalities first."""
    orders = sorted(_order(graph) for graph in group)
    return (orders[0][0] + orders[1][0], orders)


class _Steps:
    """The equalities accepted so far, as steps between states.

    A state is one integer with a field of ``WIDTH`` bits for each entry of each edge, so that a
    step is an addition; a field holds a count plus ``ZERO``.
    """

    def __init__(self, instance: Instance) -> None:
        ranks = (*instance.ranks, *instance.outputs)
        self._places = [
            (edge, entry) for edge, rank in enumerate(ranks) for entry in range(2 * rank + 2)
        ]
        self._shifts = {place: WIDTH * i for i, place in enumerate(self._places)}
        self._counted = frozenset(p for p in self._places if p[1] >= 2 * ranks[p[0]])
        self._top = self._fields(dict.fromkeys(self._places, TOP))
        # Added to a state, they set the top bit of a field above LIMIT, or of one not below -LIMIT.
        self._above = self._fields(dict.fromkeys(self._places, TOP - ZERO - LIMIT - 1))
        self._not_below = self._fields(dict.fromkeys(self._places, TOP - ZERO + LIMIT))
        self._steps: dict[_Step, None] = {}

    def new_equalities(self, group: Sequence[Decorated]) -> Iterator[tuple[Decorated, Decorated]]:
        """Connect the members of a group that are not connected yet, to the smallest."""
        first, *others = group
        near = self._near(first.word)
        for graph in others:
            state = self._state(graph.word)
            # Steps go both ways: what is MAX_STEPS away is a step from what is one nearer.
            if state in near or not near.isdisjoint(self._next(state)):
                continue
            yield first, graph
            self._steps[self._step(first.word, graph.word)] = None
            self._steps[self._step(graph.word, first.word)] = None
            near = self._near(first.word)

    def _fields(self, values: Mapping[Place, int]) -> int:
        return sum(value << self._shifts[place] for place, value in values.items())

    def _counts(self, word: Word) -> dict[Place, int]:
        total: dict[Place, int] = defaultdict(int)
        for edge, entry, power in word:
            place = (edge, entry)
            total[place] += abs(power) if place in self._counted else power
        return total

    def _state(self, word: Word) -> int:
        return self._fields(dict.fromkeys(self._places, ZERO)) + self._fields(self._counts(word))

    def _step(self, taken: Word, given: Word) -> _Step:
        have = self._counts(taken)
        needed = {place: TOP - ZERO - v for place, v in have.items() if place in self._counted}
        tops = self._fields(dict.fromkeys(needed, TOP))
        return self._fields(needed), tops, self._fields(self._counts(given)) - self._fields(have)

    def _near(self, word: Word) -> set[int]:
        """The states that all steps but the last may lead to."""
        frontier = [self._state(word)]
        reached = set(frontier)
        for _ in range(MAX_STEPS - 1):
            frontier = list({new for old in frontier for new in self._next(old)} - reached)
            reached.update(frontier)
        return reached

    def _next(self, state: int) -> Iterator[int]:
        for needed, tops, change in self._steps:
            if (state + needed) & tops == tops:
                new = state + change
                low = (new + self._not_below) & self._top == self._top
                if low and not (new + self._above) & self._top:
                    yield new
