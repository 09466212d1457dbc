"""Strategies with branches side by side, each on devices of its own.

Along one digit every device computes a part of the branches, and none of the others. What that
saves is kernels' latency, gradients that fewer devices exchange, and work that cannot be cut; what
it costs are moves to and from the branches. The search over strategies adds up seconds as if all
operators ran one after the other, so that it never sees the first; here a digit is left idle in all
branches of a fork, strategies of these are chosen anew, and each branch is given to the device of
the digit that has least to do (longest first: Graham, SIAM J. Appl. Math. 1969).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from pcg.graph import Node
from search.mesh.allow import Allowed, Mask
from search.mesh.branches import Branch, Fork, forks, pieces
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
    leaving = _Leaving(engine, spread, allowed, engine.alone(graph, exposed))
    every = forks(graph)
    found: list[Side] = []
    ways = dict.fromkeys(way for fork in every for way in (fork, pieces(fork, every)))
    for fork in ways:
        now = sum(leaving.now(node) for branch in fork for node in branch)
        for digit, prime in enumerate(engine.digits.primes):
            seconds = [sum(leaving.least(node, digit) for node in branch) for branch in fork]
            loads, last = _shared(fork, seconds, prime)
            if now > last:
                found += Side(digit, loads, now - last).turned()
    return sorted(found, key=lambda side: -side.saved)


def put(engine: Engine, spread: Spread, side: Side, allowed: Allowed, exposed: Exposed) -> Spread:
    """The choice with branches side by side, their strategies chosen anew."""
    choice, digits = spread.choice, engine.digits
    stride, prime = digits.strides[side.digit], digits.primes[side.digit]
    held, starts = dict(spread.held), dict(choice.starts)
    for value, load in enumerate(side.loads):
        for node in load:
            held[node] = held.get(node, frozenset()) | {side.digit}
            start = starts.get(node, 0)
            starts[node] = start + (value - start // stride % prime) * stride
    moved = {node for load in side.loads for node in load}
    fixed = {node: codes for node, codes in choice.codes.items() if node not in moved}
    kept = {node: start for node, start in starts.items() if start}
    made = Spread(replace(choice, starts=kept), held)

    def narrowed(node: Node, space: Space) -> Mask:
        return _leaving(allowed(node, space), space, made.idle(node, digits))

    found = engine.choose(choice.graph, 0.0, narrowed, exposed, fixed=fixed)
    return Spread(replace(made.choice, codes=found.codes), held)


@dataclass
class _Leaving:
    """What operators cost by themselves where they leave digits to others."""

    engine: Engine
    spread: Spread
    allowed: Allowed
    own: Mapping[Node, Seconds]
    _least: dict[tuple[Node, int], float] = field(default_factory=dict[tuple[Node, int], float])

    def now(self, node: Node) -> float:
        """Seconds with the strategy that is chosen."""
        place = self.engine.space(node).place(self.spread.choice.codes[node])
        assert place is not None
        return float(self.own[node][place])

    def least(self, node: Node, digit: int) -> float:
        """Seconds at least if one more digit is left idle; infinitely many where it is left to
        others already, or no such strategy is allowed."""
        if digit in self.spread.held.get(node, ()):
            return inf
        if (node, digit) not in self._least:
            space, idle = self.engine.space(node), self.spread.idle(node, self.engine.digits)
            mask = _leaving(self.allowed(node, space), space, idle | {digit})
            self._least[node, digit] = float(self.own[node][mask].min(initial=inf))
        return self._least[node, digit]


def _shared(fork: Fork, seconds: Sequence[float], among: int) -> tuple[tuple[Branch, ...], float]:
    """The operators of the branches by the device that computes them, and the seconds of the one
    that has most to do."""
    loads: list[Branch] = [()] * among
    busy = [0.0] * among
    for own, branch in sorted(zip(seconds, fork, strict=True), key=lambda pair: -pair[0]):
        least = busy.index(min(busy))
        loads[least] += branch
        busy[least] += own
    return tuple(loads), max(busy)


def _leaving(mask: Mask, space: Space, digits: frozenset[int]) -> Mask:
    """The strategies among some that leave digits idle."""
    return mask & (space.codes[:, sorted(digits)] == IDLE).all(axis=1)
