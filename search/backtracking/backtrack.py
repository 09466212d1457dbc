"""Substitution selection: cost-ordered backtracking (Unity, section 5.1; after TASO).

A queue of candidate graphs in order of cost; the best is taken out, every rule is applied to it
everywhere, and results within a factor ``threshold`` of the best cost so far enter the queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import inf
from random import Random
from time import perf_counter

from pcg.graph.graph import Graph
from search.cost.derivation import Applied
from search.cost.planned import Stop
from search.substitute.applications import Keys, Rewrites

Price = Callable[[Graph], float]
"""Seconds of a step of a graph; infinity where it does not fit the machine."""
Observer = Callable[[Graph, float], None]


@dataclass(frozen=True)
class BacktrackResult:
    """The best graph, its cost, how it was derived, and how far the search went."""

    graph: Graph
    seconds: float
    applied: tuple[Applied, ...]
    candidates: int
    stop: Stop


@dataclass(frozen=True)
class _State:
    graph: Graph
    key: int
    applied: tuple[Applied, ...]


class RewriteSpace:
    """The graphs that rules reach from one graph, expanded on demand and once.

    ``growth`` bounds by how many operators that compute a graph may outgrow the first: rules read
    from right to left can wrap any value in operators that undo each other, at little cost.
    """

    def __init__(self, start: Graph, rewrites: Rewrites, keys: Keys, growth: int) -> None:
        self._rewrites, self._keys = rewrites, keys
        self._limit = _computing(start) + growth
        self.start = _State(start, keys.of(start), ())
        self._known = {self.start.key: self.start}
        self._next: dict[int, tuple[_State, ...]] = {}

    def neighbours(self, state: _State) -> tuple[_State, ...]:
        found = self._next.get(state.key)
        if found is None:
            found = self._next[state.key] = tuple(self._expand(state))
        return found

    def _expand(self, state: _State) -> list[_State]:
        found: dict[int, _State] = {}
        for graph, step in self._rewrites.applications(state.graph):
            if _computing(graph) > self._limit:
                continue
            key = self._keys.of(graph)
            if key not in self._known:
                self._known[key] = _State(graph, key, (*state.applied, step))
            found[key] = self._known[key]
        return list(found.values())


def _computing(graph: Graph) -> int:
    return sum(not (node.is_leaf or node.is_parallel) for node in graph.nodes)


def backtrack(
    space: RewriteSpace,
    price: Price,
    *,
    threshold: float = 1.05,
    budget: int = 10_000,
    deadline: float = inf,
    observe: Observer | None = None,
    seed: int | None = None,
) -> BacktrackResult:
    """The best graph found. ``budget`` bounds the candidates priced, ``deadline`` the time
    (``perf_counter`` seconds). ``seed``: of the order of graphs of equal cost, which without it is
    that in which they are found. An interrupt ends it with the best so far."""
    random = None if seed is None else Random(seed)
    order = ((random.random() if random else 0.0, number) for number in count())
    best, best_seconds = space.start, price(space.start.graph)
    queue = [(best_seconds, next(order), best)]
    seen = {best.key}
    stop: Stop = "exhausted"
    try:
        while queue:
            seconds, _, state = heapq.heappop(queue)
            if seconds > best_seconds * threshold and best_seconds < inf:
                break
            for candidate in space.neighbours(state):
                if candidate.key in seen:
                    continue
                seen.add(candidate.key)
                cost = price(candidate.graph)
                if observe is not None:
                    observe(candidate.graph, cost)
                if cost < best_seconds:
                    best, best_seconds = candidate, cost
                if cost < best_seconds * threshold:
                    heapq.heappush(queue, (cost, next(order), candidate))
            if len(seen) >= budget or perf_counter() >= deadline:
                stop = "budget" if len(seen) >= budget else "time"
                break
    except KeyboardInterrupt:
        stop = "interrupted"
    return BacktrackResult(best.graph, best_seconds, best.applied, len(seen), stop)
