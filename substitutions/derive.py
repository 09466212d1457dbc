"""The rules around one operator that do not follow from smaller ones.

Graphs with the same key are typed alike and equal. Which of those equalities are worth a rule is a
word problem: a graph is a word of parallel operators on edges; partition and combine on an edge
cancel, and operators on one edge commute (rules of their own), so a word is a vector of integers,
with counts of replicate and reduce, which nothing undoes, never negative. A rule replaces one
vector by another. An equality that earlier rules reach in a few steps is derived, and left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from pcg.graph import Value
from substitutions.cuts import Decorated, Key, Word, decorations
from substitutions.enumerate import Instance

Coordinate = tuple[int, int, bool]
"""(edge, entry, whether it is a count that cannot be negative)."""
State = frozenset[tuple[Coordinate, int]]
Pair = tuple[tuple[Value, ...], tuple[Value, ...]]

MAX_STEPS = 3


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
    """The equalities accepted so far, as steps between states."""

    def __init__(self, instance: Instance) -> None:
        self._ranks = (*instance.ranks, *instance.outputs)
        self._steps: list[tuple[State, State]] = []

    def new_equalities(self, group: Sequence[Decorated]) -> Iterator[tuple[Decorated, Decorated]]:
        """Connect the members of a group that are not connected yet, to the smallest."""
        first, *others = group
        reached = self._reach(self._state(first.word))
        for graph in others:
            state = self._state(graph.word)
            if state in reached:
                continue
            yield first, graph
            self._steps += [(self._state(first.word), state), (state, self._state(first.word))]
            reached = self._reach(self._state(first.word))

    def _state(self, word: Word) -> State:
        total: dict[Coordinate, int] = defaultdict(int)
        for edge, entry, power in word:
            counted = entry >= 2 * self._ranks[edge]
            total[edge, entry, counted] += abs(power) if counted else power
        return frozenset((c, v) for c, v in total.items() if v)

    def _reach(self, start: State) -> set[State]:
        reached = {start}
        frontier = [start]
        for _ in range(MAX_STEPS):
            frontier = [
                state
                for old in frontier
                for state in self._next(old)
                if state not in reached and not reached.add(state)
            ]
        return reached

    def _next(self, state: State) -> Iterator[State]:
        have = dict(state)
        for taken, given in self._steps:
            if all(have.get(c, 0) >= v for c, v in taken if c[2]):
                new = _combined(have, taken, given)
                if all(abs(v) <= 2 for _, v in new):
                    yield new


def _combined(
    have: dict[Coordinate, int],
    taken: Iterable[tuple[Coordinate, int]],
    given: Iterable[tuple[Coordinate, int]],
) -> State:
    total = dict(have)
    for coordinate, value in taken:
        total[coordinate] = total.get(coordinate, 0) - value
    for coordinate, value in given:
        total[coordinate] = total.get(coordinate, 0) + value
    return frozenset((c, v) for c, v in total.items() if v)
