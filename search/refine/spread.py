"""Branches side by side: strategies in which branches of a graph run on devices of their own.

Problem: the search over strategies adds up seconds as if all operators ran one after the other. So
it does not see what branches side by side save: the latency of kernels, gradients that fewer
devices exchange, and work that cannot be cut. Branches side by side cost resharding to and from
them.

Method: one mesh axis is left idle in all branches of a fork. The strategies of the branches are
chosen anew. Each branch is given to the device along the axis that has least to do, longest branch
first (Graham, SIAM J. Appl. Math. 1969). The promised gain of a fork is an estimate; the caller
simulates it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from pcg.graph.graph import Node
from pcg.memo import remembered
from search.cost.progress import check_time
from search.map.choose.choosing import Choice, Chooser, Exposed, Prices
from search.map.space.allow import Allowed, Mask
from search.map.space.axes import Mesh, Seconds
from search.map.space.strategies import IDLE, Space
from search.split.branches import Branch, forks

ReservedAxes = Mapping[Node, frozenset[int]]
"""For each operator, the mesh axes that are reserved for other branches."""


@dataclass(frozen=True)
class BranchLoads:
    """Branches to be put side by side along a mesh axis. ``loads``: for each device along it, the
    operators that it computes; ``saved``: the seconds that this promises to save."""

    mesh_axis: int
    loads: tuple[Branch, ...]
    saved: float

    def turned(self) -> Iterator[BranchLoads]:
        """The same with the loads rotated among the devices: the operators before the branches and
        after them may run on one of these devices."""
        for first in range(len(self.loads)):
            yield replace(self, loads=self.loads[first:] + self.loads[:first])


@dataclass(frozen=True)
class Spread:
    """A choice of strategies, and the mesh axes that it reserves for branches side by side."""

    choice: Choice
    reserved: ReservedAxes

    def idle(self, node: Node, mesh: Mesh) -> frozenset[int]:
        """The mesh axes that are idle for an operator: reserved for other branches, or with a first
        device other than 0 along them."""
        start = self.choice.starts.get(node, 0)
        places = enumerate(zip(mesh.strides, mesh.primes, strict=True))
        begun = {d for d, (stride, prime) in places if start // stride % prime}
        return self.reserved.get(node, frozenset()) | begun


def branch_loads(
    chooser: Chooser, spread: Spread, allowed: Allowed, exposed: Exposed, *, around: bool
) -> list[BranchLoads]:
    """The ways to put more branches side by side, the most promising first. ``around``: whether
    reshardings to and from branches count, with all other operators left as they are."""
    every = forks(spread.choice.graph)
    rows = _BranchTimes(
        chooser, spread, allowed, chooser.prices(spread.choice.graph, exposed), around=around
    )
    ways: list[BranchLoads] = []
    for branches in dict.fromkeys(
        branches_of for fork in every for branches_of in (fork.branches, fork.innermost)
    ):
        check_time()
        summed = [rows.summed(branch) for branch in branches]
        busy = sum(now for now, _ in summed)
        for mesh_axis, prime in enumerate(chooser.mesh.primes):
            loads, last = _shared(branches, [float(least[mesh_axis]) for _, least in summed], prime)
            if busy > last:
                ways += BranchLoads(mesh_axis, loads, busy - last).turned()
    return sorted(ways, key=lambda side: -side.saved)


def put_side_by_side(
    chooser: Chooser,
    spread: Spread,
    side: BranchLoads,
    allowed: Allowed,
    exposed: Exposed,
    *,
    fixed: bool = True,
) -> Spread:
    """The choice with branches side by side and their strategies chosen anew; those of all other
    operators too, unless they are ``fixed``."""
    choice, mesh = spread.choice, chooser.mesh
    stride, prime = mesh.strides[side.mesh_axis], mesh.primes[side.mesh_axis]
    reserved, starts = dict(spread.reserved), dict(choice.starts)
    for value, load in enumerate(side.loads):
        for node in load:
            reserved[node] = reserved.get(node, frozenset()) | {side.mesh_axis}
            start = starts.get(node, 0)
            starts[node] = start + (value - start // stride % prime) * stride
    moved = {node for load in side.loads for node in load}
    others = {
        node: strategy
        for node, strategy in choice.strategies.items()
        if node not in moved and fixed
    }
    kept = {node: start for node, start in starts.items() if start}
    made = Spread(replace(choice, starts=kept), reserved)

    def narrowed(node: Node, space: Space) -> Mask:
        return _leaving(allowed(node, space), space, made.idle(node, mesh))

    chosen = chooser.choose(choice.graph, 0.0, narrowed, exposed, fixed=others)
    return Spread(replace(made.choice, strategies=chosen.strategies), reserved)


class _BranchTimes:
    """The seconds of operators: with their strategies now, and the least if one more mesh axis is
    idle. The latter are infinite if the axis is already reserved, or if no such strategy is
    allowed.
    """

    def __init__(
        self, chooser: Chooser, spread: Spread, allowed: Allowed, prices: Prices, *, around: bool
    ) -> None:
        self._chooser, self._spread, self._allowed, self._prices = chooser, spread, allowed, prices
        self._number = {node: i for i, node in enumerate(prices.nodes)}
        reshardings = range(len(prices.resharding) if around else 0)
        pairs = [prices.resharding[at].variables for at in reshardings]
        ends = np.array(pairs, int).reshape(-1, 2)
        self._from = np.concatenate([ends[:, 0], ends[:, 1]])
        """The near ends of reshardings, each of which is listed from both of its ends."""
        self._to = np.concatenate([ends[:, 1], ends[:, 0]])

    def summed(self, branch: Branch) -> tuple[float, Seconds]:
        """The sums over all operators of a branch: seconds now, and the least for each mesh axis.
        Reshardings between the branch and other operators count with those of the branch."""
        within = np.zeros(len(self._prices.nodes), bool)
        within[[self._number[node] for node in branch]] = True
        across = np.flatnonzero(within[self._from] & ~within[self._to])
        border: dict[int, list[int]] = {}
        for resharding, end in zip(across.tolist(), self._from[across].tolist(), strict=True):
            border.setdefault(end, []).append(resharding)
        within[list(border)] = False
        now, least = self._inside
        total, at_least = float(now[within].sum()), least[within].sum(axis=0)
        for end, reshardings in border.items():
            at_border = self._row(end, tuple(reshardings))
            total, at_least = total + at_border[0], at_least + at_border[1]
        return total, at_least

    @cached_property
    def _inside(self) -> tuple[Seconds, Seconds]:
        """The seconds of each operator by itself: now [operators] and least [operators, mesh
        axes]."""
        rows = [self._row(i, ()) for i in range(len(self._prices.nodes))]
        return np.array([now for now, _ in rows]), np.array([least for _, least in rows])

    @remembered
    def _row(self, at: int, reshardings: tuple[int, ...]) -> tuple[float, Seconds]:
        """The seconds of one operator with some reshardings."""
        seconds = self._prices.alone[self._prices.nodes[at]]
        for resharding in reshardings:
            seconds = seconds + self._resharding_seconds(resharding)
        return self._now_and_least(self._prices.nodes[at], seconds)

    def _resharding_seconds(self, resharding: int) -> Seconds:
        """Seconds of a resharding by the strategies of its near end, with the far end as it is."""
        factors = self._prices.resharding
        factor = factors[resharding % len(factors)]
        other = self._prices.nodes[int(self._to[resharding])]
        place = self._place(other)
        values = factor.values[:, place] if resharding < len(factors) else factor.values[place]
        return values.astype(np.float64) * factor.times

    def _place(self, node: Node) -> int:
        place = self._chooser.spaces.of(node).place(self._spread.choice.strategies[node])
        assert place is not None
        return place

    def _now_and_least(self, node: Node, seconds: Seconds) -> tuple[float, Seconds]:
        space, mesh = self._chooser.spaces.of(node), self._chooser.mesh
        reserved, idle = self._spread.reserved.get(node, ()), self._spread.idle(node, mesh)
        mask = self._allowed(node, space)
        least = [
            inf
            if mesh_axis in reserved
            else float(seconds[_leaving(mask, space, idle | {mesh_axis})].min(initial=inf))
            for mesh_axis in range(len(mesh))
        ]
        return float(seconds[self._place(node)]), np.array(least)


def _shared(
    branches: Sequence[Branch], seconds: Sequence[float], among: int
) -> tuple[tuple[Branch, ...], float]:
    """The operators of branches, shared among ``among`` devices, and the seconds of the busiest
    device."""
    loads: list[Branch] = [()] * among
    busy = [0.0] * among
    for of_branch, branch in sorted(zip(seconds, branches, strict=True), key=lambda pair: -pair[0]):
        least = busy.index(min(busy))
        loads[least] += branch
        busy[least] += of_branch
    return tuple(loads), max(busy)


def _leaving(mask: Mask, space: Space, mesh_axes: frozenset[int]) -> Mask:
    """The strategies of a mask that leave the given mesh axes idle."""
    return mask & (space.strategies[:, sorted(mesh_axes)] == IDLE).all(axis=1)
