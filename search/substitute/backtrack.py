"""Cost-ordered backtracking over what rewrites make of a graph.

Problem: of all states that rewrites reach from a first one, find one that costs least.

Method: a queue in the order of cost. What costs least is taken out and rewritten in every way, and
what that makes enters the queue if it costs no more than ``threshold`` times the least so far. So a
rewrite that costs something is made, if not too much, for the sake of those that it makes possible
(TASO, SOSP 2019, section 5; Unity, OSDI 2022, section 5.1). What a rewrite makes enters with an
estimate, and is priced when its turn comes.

Complexity: n states that are priced and m that enter take n prices and m estimates, and
O(m log m) for the queue. The search ends after ``patience`` prices in a row without a gain.

Exact, if estimates are bounds from below, for the best of the states that are reached by states
of which each costs no more than ``threshold`` times the best of all, with all the patience it
takes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from search.choices import THRESHOLD

S = TypeVar("S")


@dataclass(frozen=True)
class Promise(Generic[S]):
    """What a rewrite may make. ``estimate``: of its cost; ``made``: the state; None where it is
    known from another way, or cannot be made."""

    estimate: float
    made: Callable[[], S | None]


@dataclass(frozen=True)
class Backtracked(Generic[S]):
    """The best state. ``priced``: how many states were; ``left``: how many candidates within the
    threshold were not, when the search ended."""

    best: S
    priced: int
    left: int


@dataclass(frozen=True)
class Extent:
    """How far to look. ``threshold``: so many times the least cost a state may cost to be
    rewritten, 1 or more; ``patience``: prices in a row without a gain; ``least_gain``: the part of
    the least cost that is a gain; ``is_over``: whether time is up."""

    threshold: float = THRESHOLD
    patience: int = 1 << 20
    least_gain: float = 0.0
    is_over: Callable[[], bool] = lambda: False


def backtrack(
    start: S,
    cost: Callable[[S], float],
    candidates: Callable[[S], Iterable[Promise[S]]],
    extent: Extent,
) -> Backtracked[S]:
    """The best of the states that candidates lead to from a first one."""
    best, least = start, cost(start)
    order = count()
    queue: list[tuple[float, int, Promise[S] | None, S]] = [(least, next(order), None, start)]
    priced = in_vain = 0
    while queue and queue[0][0] <= extent.threshold * least:
        if extent.is_over() or in_vain >= extent.patience:
            break
        _, _, candidate, state = heapq.heappop(queue)
        if candidate is None:
            for one in candidates(state):
                heapq.heappush(queue, (one.estimate, next(order), one, state))
            continue
        made = candidate.made()
        if made is None:
            continue
        priced, in_vain, own = priced + 1, in_vain + 1, cost(made)
        if own < (1 - extent.least_gain) * least:
            best, least, in_vain = made, own, 0
        if own <= extent.threshold * least:
            heapq.heappush(queue, (own, next(order), None, made))
    within = sum(entry[0] <= extent.threshold * least for entry in queue)
    return Backtracked(best, priced, within)
