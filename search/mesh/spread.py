"""Strategies with branches side by side, each on devices of its own.

Along one digit every device computes a part of the branches, and none of the others. What that
saves is kernels' latency, gradients that fewer devices exchange, and work that cannot be cut; what
it costs are moves to and from the branches. The search over strategies adds up seconds as if all
operators ran one after the other, so that it never sees the first; here a digit is left idle in all
branches of a fork, strategies of these are chosen anew, and each branch is given to the device of
the digit that has least to do (longest first: Graham, SIAM J. Appl. Math. 1969).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from pcg.graph import Node
from search.mesh.allow import Allowed, Mask
from search.mesh.branches import Branch, forks
from search.mesh.digits import Digits, Seconds
from search.mesh.engine import Choice, Engine, Exposed
from search.mesh.strategies import IDLE, Space

Held = Mapping[Node, frozenset[int]]
"""The digits that operators leave to others."""


@dataclass(frozen=True)
class Side:
    """Branches to be put side by side along a digit: for each device along it the operators that it
    computes, and the seconds that this promises to save."""

    digit: int
    loads: tuple[Branch, ...]
    saved: float

    def turned(self) -> Iterator[Side]:
        """The same with each load on the device of another: what comes before the branches and
        after them may run on one of these."""
        for first in range(len(self.loads)):
            yield replace(self, loads=self.loads[first:] + self.loads[:first])


@dataclass(frozen=True)
class Spread:
    """A choice of strategies some of which have branches side by side."""

    choice: Choice
    held: Held

    def idle(self, node: Node, digits: Digits) -> frozenset[int]:
        """The digits that an operator leaves to others, or along which it does not begin at the
        first device."""
        start = self.choice.starts.get(node, 0)
        places = enumerate(zip(digits.strides, digits.primes, strict=True))
        begun = {d for d, (stride, prime) in places if start // stride % prime}
        return self.held.get(node, frozenset()) | begun


def sides(engine: Engine, spread: Spread, allowed: Allowed, exposed: Exposed) -> list[Side]:
    """The ways to put more branches side by side, those that promise most first."""
    graph = spread.choice.graph
    every = forks(graph)
    ways = dict.fromkeys(way for fork in every for way in (fork.branches, fork.innermost))
    concerned = dict.fromkeys(node for fork in every for branch in fork.branches for node in branch)
    row = {node: i for i, node in enumerate(concerned)}
    now, least = _leaving_one(engine, spread, allowed, engine.alone(graph, exposed), row)
    found: list[Side] = []
    for branches in ways:
        rows = [[row[node] for node in branch] for branch in branches]
        busy = float(sum(now[places].sum() for places in rows))
        seconds = np.array([least[places].sum(axis=0) for places in rows])
        for digit, prime in enumerate(engine.digits.primes):
            loads, last = _shared(branches, seconds[:, digit].tolist(), prime)
            if busy > last:
                found += Side(digit, loads, busy - last).turned()
    return sorted(found, key=lambda side: -side.saved)


def put(
    engine: Engine,
    spread: Spread,
    side: Side,
    allowed: Allowed,
    exposed: Exposed,
    *,
    fixed: bool = True,
) -> Spread:
    """The choice with branches side by side, their strategies chosen anew; those of all others as
    well if these are not ``fixed``."""
    choice, digits = spread.choice, engine.digits
    stride, prime = digits.strides[side.digit], digits.primes[side.digit]
    held, starts = dict(spread.held), dict(choice.starts)
    for value, load in enumerate(side.loads):
        for node in load:
            held[node] = held.get(node, frozenset()) | {side.digit}
            start = starts.get(node, 0)
            starts[node] = start + (value - start // stride % prime) * stride
    moved = {node for load in side.loads for node in load}
    others = {node: codes for node, codes in choice.codes.items() if node not in moved and fixed}
    kept = {node: start for node, start in starts.items() if start}
    made = Spread(replace(choice, starts=kept), held)

    def narrowed(node: Node, space: Space) -> Mask:
        return _leaving(allowed(node, space), space, made.idle(node, digits))

    found = engine.choose(choice.graph, 0.0, narrowed, exposed, fixed=others)
    return Spread(replace(made.choice, codes=found.codes), held)


def _leaving_one(
    engine: Engine,
    spread: Spread,
    allowed: Allowed,
    own: Mapping[Node, Seconds],
    nodes: Iterable[Node],
) -> tuple[Seconds, Seconds]:
    """What each of some operators takes by itself with the strategy that is chosen [nodes], and at
    least if one more digit is left idle [nodes, digits]; infinitely long where it is left to others
    already, or no such strategy is allowed."""
    digits = engine.digits
    now: list[float] = []
    least: list[list[float]] = []
    for node in nodes:
        space, seconds = engine.space(node), own[node]
        place = space.place(spread.choice.codes[node])
        assert place is not None
        now.append(float(seconds[place]))
        held, idle = spread.held.get(node, ()), spread.idle(node, digits)
        mask = allowed(node, space)
        least.append(
            [
                inf
                if digit in held
                else float(seconds[_leaving(mask, space, idle | {digit})].min(initial=inf))
                for digit in range(len(digits))
            ]
        )
    return np.array(now), np.array(least).reshape(len(now), len(digits))


def _shared(
    branches: Sequence[Branch], seconds: Sequence[float], among: int
) -> tuple[tuple[Branch, ...], float]:
    """The operators of the branches by the device that computes them, and the seconds of the one
    that has most to do."""
    loads: list[Branch] = [()] * among
    busy = [0.0] * among
    for own, branch in sorted(zip(seconds, branches, strict=True), key=lambda pair: -pair[0]):
        least = busy.index(min(busy))
        loads[least] += branch
        busy[least] += own
    return tuple(loads), max(busy)


def _leaving(mask: Mask, space: Space, digits: frozenset[int]) -> Mask:
    """The strategies among some that leave digits idle."""
    return mask & (space.codes[:, sorted(digits)] == IDLE).all(axis=1)
