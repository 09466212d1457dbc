"""Random changes of a plan: mappings of one operator, or of several that are connected, and the
order of issue.

Operators that change together are aligned. A neighbour of a cut operator is cut along
the same dimension of the tensor between them, on the same devices, so that nothing moves between
the two. So a branch gets to other devices in one change. Changes operator by operator would lead
through slower plans. Connected operators that share their devices move together as well, or change
places with others, or get more or fewer devices. So loads are balanced in one change.

The changes are made in machine code (``native.moves``). Here its tables are filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from pcg.graph.graph import Graph, Node
from search.map.choose.spaces import Spaces
from search.refine.mappings import NumberedMappings, PlanState, passing_axes
from search.refine.native.moves import lay_apart, move
from search.refine.native.random_mappings import NO_DIMENSION, MoveTables
from search.refine.native.tables import Numbers, numbered_lists
from search.split.branches import Branch, forks


class Shares(NamedTuple):
    """The shares of kinds of changes, added up in this order. ``any_of``: an operator is mapped
    anew; ``aligned``: like a neighbour, with the same cuts; ``beside``: on the devices of a
    neighbour, with any cuts; ``shifted``: to other devices; ``spread``: a region is mapped anew;
    ``begun``: a region is moved to other devices. Else a region is moved to a group of devices.
    ``relocated``: the share, before all these, of moves of operators that share their devices;
    ``grown``: that of changes, before these, that give such operators more or fewer devices;
    ``reissued``: that of changes of the order of issue, before all others."""

    any_of: float
    aligned: float
    beside: float
    shifted: float
    spread: float
    begun: float
    relocated: float = 0.25
    grown: float = 0.12
    reissued: float = 0.1


BROAD = Shares(0.25, 0.5, 0.5, 0.5, 0.75, 0.85)
"""Half of the changes are of regions: they lead far."""
FINE = Shares(0.3, 0.45, 0.6, 0.68, 0.84, 0.92)
"""Most changes are of one operator. Such a state takes least time to simulate."""
SINGLE = Shares(0.35, 0.55, 0.75, 1.0, 1.0, 1.0, 0.05, 0.05)
"""Nearly all changes are of one operator."""
ORDERS = Shares(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, reissued=1.0)
"""All changes are of the order of issue."""


class Moves:
    """Random changes of the states of a graph on ``devices`` devices. The same seed gives the same
    changes. ``known``: the numbers of mappings, of which states are made; ``only_orders``: whether
    only the order of issue will change."""

    def __init__(
        self,
        graph: Graph,
        spaces: Spaces,
        devices: int,
        known: NumberedMappings,
        seed: int = 0,
        *,
        only_orders: bool = False,
    ) -> None:
        self.known, self._nodes = known, graph.operators
        self.tables = _tables(graph, spaces, devices, seed, only_orders=only_orders)

    def begin_at(self, nodes: Iterable[Node]) -> None:
        """From now on, changes begin at one of these operators."""
        drawn = [self._nodes.index(node) for node in nodes]
        self.tables = self.tables._replace(drawn=np.array(drawn, np.int64))

    def make_room(self) -> None:
        """Make room for the mappings of one more change, which are at most one for each operator
        and one more."""
        self.known.make_room(len(self._nodes) + 1)

    def moved(self, now: PlanState, shares: Shares = BROAD) -> PlanState:
        """The state after a random change; an equal one if the change has no effect."""
        state, other = self._states(now)
        move(self.tables, self.known.table, np.array(shares), state, other)
        return self.known.decoded(other)

    def apart(self, now: PlanState) -> PlanState | None:
        """The state with the branches of a random fork on neighbouring groups of devices. None if
        nothing forks."""
        state, other = self._states(now)
        if not lay_apart(self.tables, self.known.table, state, other):
            return None
        return self.known.decoded(other)

    def _states(self, now: PlanState) -> tuple[Numbers, Numbers]:
        state = self.known.encoded(now)
        self.make_room()
        return state, np.zeros_like(state)


def _tables(
    graph: Graph, spaces: Spaces, devices: int, seed: int, *, only_orders: bool
) -> MoveTables:
    """The tables of a graph's changes."""
    nodes = graph.operators
    numbers = {node: number for number, node in enumerate(nodes)}
    axes, through = [spaces.of(node).axes for node in nodes], passing_axes(nodes, spaces)
    most = through.shape[1]
    fits = np.zeros((len(nodes), most, devices + 1), np.int64)
    for number, node in enumerate(() if only_orders else nodes):
        own = spaces.fitting(node)
        fits[number, : len(own), 2:] = own[:, 2:]
    every = forks(graph)
    sides = list(dict.fromkeys(b for fork in every for b in (fork.branches, fork.innermost)))
    regions = [nodes, *dict.fromkeys(chain.from_iterable(sides))]
    branches = [branch for side in sides for branch in side]
    return MoveTables(
        devices,
        np.array([len(own) for own in axes], np.int64),
        through,
        fits,
        *_edges(nodes, spaces, most),
        *numbered_lists(_members(regions, numbers)),
        np.cumsum([0, *map(len, sides)]),
        *numbered_lists(_members(branches, numbers)),
        np.arange(len(nodes)),
        _random(seed),
        np.zeros(len(nodes), np.int64),
        np.zeros(len(nodes), np.int64),
        np.zeros(len(nodes) + 1, np.int64),
        np.zeros(most + 2, np.int64),
        np.zeros((max(map(len, sides), default=0) + 1, 2), np.int64),
    )


def _edges(nodes: Sequence[Node], spaces: Spaces, most: int) -> tuple[Numbers, Numbers, Numbers]:
    """For each operator, its edges to those that it reads and that read it: the first edge, the
    other ends, and the dimensions along the axes of both."""
    numbers = {node: number for number, node in enumerate(nodes)}
    edges: list[list[tuple[int, list[list[int]]]]] = [[] for _ in nodes]
    for reader in nodes:
        for position, value in enumerate(reader.inputs):
            if value.node.is_leaf:
                continue
            made = _dimensions((a.outputs[value.port] for a in spaces.of(value.node).axes), most)
            read = _dimensions((a.operands[position] for a in spaces.of(reader).axes), most)
            edges[numbers[value.node]].append((numbers[reader], [made, read]))
            edges[numbers[reader]].append((numbers[value.node], [read, made]))
    first, others = numbered_lists([[other for other, _ in own] for own in edges])
    ends = [both for own in edges for _, both in own]
    return first, others, np.array(ends, np.int64).reshape(-1, 2, most)


def _dimensions(cut: Iterable[int | None], most: int) -> list[int]:
    made = [NO_DIMENSION if dimension is None else dimension for dimension in cut]
    return made + [NO_DIMENSION] * (most - len(made))


def _members(some: Iterable[Branch], numbers: Mapping[Node, int]) -> list[list[int]]:
    return [[numbers[node] for node in branch] for branch in some]


def _random(seed: int) -> Numbers:
    """The first state of random numbers. States of seeds in a row have few bits in common."""
    return np.array([(seed + 1) * 0x9E3779B1 % 0xFFFFFFFF + 1], np.int64)
