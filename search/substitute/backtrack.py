"""Cost-ordered backtracking over the graphs that rewrites lead to.

Problem: among all states that rewrites reach from a first state, find one of least cost.

Method: a queue ordered by cost. The cheapest state is taken out and rewritten in every way. A
result enters the queue if it costs no more than ``threshold`` times the least cost so far. So a
rewrite that costs a little is made for the sake of the rewrites that it makes possible (TASO, SOSP
2019, section 5; Unity, OSDI 2022, section 5.1). A result enters with an estimate, and is priced
when its turn comes.

Complexity: if n states are priced and m enter the queue, n prices and m estimates, and O(m log m)
for the queue. The search ends after ``patience`` prices in a row without a gain.

Exact under two conditions: estimates are lower bounds, and patience does not run out. Then the
result is the best of the states that are reached through states which each cost no more than
``threshold`` times the best of all.
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
class RewriteCandidate(Generic[S]):
    """A candidate of a rewrite. ``estimate``: of its cost; ``made``: returns the state, or None if
    the state is already known, or cannot be made."""

    estimate: float
    made: Callable[[], S | None]


@dataclass(frozen=True)
class BacktrackResult(Generic[S]):
    """The best state. ``priced``: the number of states that were priced; ``left``: the number of
    candidates within the threshold that were not, when the search ended."""

    best: S
    priced: int
    left: int


@dataclass(frozen=True)
class BacktrackLimits:
    """The limits of a search. ``threshold``: a state is rewritten if its cost is at most this many
    times the least, 1 or more; ``patience``: prices in a row without a gain before the search ends;
    ``least_gain``: the smallest gain that counts, as a fraction of the least cost; ``is_over``:
    whether time is up."""

    threshold: float = THRESHOLD
    patience: int = 1 << 20
    least_gain: float = 0.0
    is_over: Callable[[], bool] = lambda: False


def backtrack(
    start: S,
    cost: Callable[[S], float],
    candidates: Callable[[S], Iterable[RewriteCandidate[S]]],
    limits: BacktrackLimits,
) -> BacktrackResult[S]:
    """Return the best of the states that candidates lead to from a first state."""
    best, least = start, cost(start)
    order = count()
    queue: list[tuple[float, int, RewriteCandidate[S] | None, S]] = [
        (least, next(order), None, start)
    ]
    priced = in_vain = 0
    while queue and queue[0][0] <= limits.threshold * least:
        if limits.is_over() or in_vain >= limits.patience:
            break
        _, _, candidate, state = heapq.heappop(queue)
        if candidate is None:
            for found in candidates(state):
                heapq.heappush(queue, (found.estimate, next(order), found, state))
            continue
        made = candidate.made()
        if made is None:
            continue
        priced, in_vain, cost_of_made = priced + 1, in_vain + 1, cost(made)
        if cost_of_made < (1 - limits.least_gain) * least:
            best, least, in_vain = made, cost_of_made, 0
        if cost_of_made <= limits.threshold * least:
            heapq.heappush(queue, (cost_of_made, next(order), None, made))
    within = sum(entry[0] <= limits.threshold * least for entry in queue)
    return BacktrackResult(best, priced, within)
