"""Random changes of a plan: mappings of one operator, or of several that are connected.

Operators that change together are aligned. A neighbour of a cut operator is cut along
the same dimension of the tensor between them, on the same devices, so that nothing moves between
the two. So a branch gets to other devices in one change. Changes operator by operator would lead
through slower plans. Connected operators that share their devices move together as well, or change
places with others. So loads are balanced in one change.

Complexity: the operators that change, and their operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import NamedTuple

from pcg.graph.graph import Graph, Node
from pcg.memo import Answers
from search.map.choose.spaces import Spaces
from search.map.space.mapping import MappedAxis, OperatorMapping
from search.map.space.strategies import REPLICATE, passes
from search.split.branches import Branch, forks

Mappings = Mapping[Node, OperatorMapping]


class Shares(NamedTuple):
    """The shares of kinds of changes, added up in this order. ``any_of``: an operator is mapped
    anew; ``aligned``: like a neighbour, with the same cuts; ``beside``: on the devices of a
    neighbour, with any cuts; ``shifted``: to other devices; ``spread``: a region is mapped anew;
    ``begun``: a region is moved to other devices. Else a region is moved to a group of devices."""

    any_of: float
    aligned: float
    beside: float
    shifted: float
    spread: float
    begun: float


BROAD = Shares(0.25, 0.5, 0.5, 0.5, 0.75, 0.85)
"""Half of the changes are of regions: they lead far."""
FINE = Shares(0.3, 0.45, 0.6, 0.68, 0.84, 0.92)
"""Most changes are of one operator. Such a state takes least time to simulate."""
LONGEST = 8
"""The most operators that change together at random. A branch changes as a whole."""
RELOCATED = 0.25
"""The share, before all others, of changes of operators that share their devices."""
EXCHANGED, IN_PART, TO_USED = 0.5, 0.6, 0.4
"""The parts of these changes in which they change places with others; of such sets that change in
part; and of moves that go to the devices of another operator rather than to any."""


@dataclass(frozen=True)
class _Edge:
    """An edge from an operator to one that it reads, or that reads it (``other``). ``own`` and
    ``others``: for each axis of the first and of the other operator's space, the dimension of the
    tensor between them; None if the axis stands for copies or partial sums of it."""

    other: Node
    own: tuple[int | None, ...]
    others: tuple[int | None, ...]


@dataclass(eq=False)
class Moves:
    """Random changes of the mappings of a graph's operators on ``devices`` devices."""

    graph: Graph
    spaces: Spaces
    devices: int
    random: Random
    shares: Shares = BROAD
    _edges: dict[Node, list[_Edge]] = field(init=False, default_factory=dict[Node, list[_Edge]])
    _regions: Sequence[Sequence[Node]] = field(init=False)
    _forks: Sequence[Sequence[Branch]] = field(init=False)
    """Sets of branches that may run side by side: those of each fork, and its innermost ones."""

    def __post_init__(self) -> None:
        nodes = self.graph.operators
        self._edges = {node: [] for node in nodes}
        for reader in nodes:
            for position, value in enumerate(reader.inputs):
                maker = value.node
                if maker.is_leaf:
                    continue
                made = tuple(axis.outputs[value.port] for axis in self.spaces.of(maker).axes)
                read = tuple(axis.operands[position] for axis in self.spaces.of(reader).axes)
                self._edges[maker].append(_Edge(reader, made, read))
                self._edges[reader].append(_Edge(maker, read, made))
        self._known_places = Answers(self._find_places)
        every = forks(self.graph)
        self._forks = [*dict.fromkeys(b for fork in every for b in (fork.branches, fork.innermost))]
        self._regions = [nodes, *dict.fromkeys(b for branches in self._forks for b in branches)]

    def moved(self, now: Mappings) -> dict[Node, OperatorMapping]:
        """The mappings after a random change; equal ones if the change has no effect."""
        random, node = self.random, self.random.choice(self.graph.operators)
        if random.random() < RELOCATED:
            return {**now, **self._relocated(now, node)}
        kind, shares = random.random(), self.shares
        if kind < shares.any_of:
            return {**now, node: self.any_of(node)}
        if kind < shares.beside and self._edges[node]:
            edge = random.choice(self._edges[node])
            if kind < shares.aligned:
                back = _Edge(node, edge.others, edge.own)
                return {**now, node: self._aligned(now[edge.other], back)}
            return {**now, node: self._beside(node, now[edge.other])}
        if kind < shares.shifted:
            return {**now, **self._begun(now, [node])}
        region = self._region(node)
        if kind < shares.spread:
            seed = random.choice(region)
            return {**now, **self._spread(seed, self.any_of(seed), region)}
        if kind < shares.begun:
            return {**now, **self._begun(now, region)}
        return {**now, **self._on_group(now, region)}

    def apart(self, now: Mappings) -> dict[Node, OperatorMapping] | None:
        """The mappings with the branches of a random fork on neighbouring groups of devices. None
        if nothing forks."""
        if not self._forks:
            return None
        return {**now, **self._apart(now, self.random.choice(self._forks))}

    def any_of(self, node: Node) -> OperatorMapping:
        """A random mapping of an operator: on consecutive devices, or on every second, third,
        ..."""
        random = self.random
        size = random.randint(1, self.devices)
        cuts: list[tuple[int, int]] = []
        while size > 1 and len(cuts) < 2:
            degree = size if random.random() < 0.7 else random.randint(2, size)
            places = self._places(node, degree, [at for at, _ in cuts])
            if not places:
                size -= 1
                continue
            cuts.append((random.choice(places), degree))
            size //= degree
        made = OperatorMapping.packed(0, cuts)
        if cuts and random.random() < 0.15:
            times = random.randint(1, max(1, self.devices // made.size))
            made = OperatorMapping(0, tuple(a._replace(stride=a.stride * times) for a in made.axes))
        return made.moved(random.randrange(self.devices - made.last))

    def _places(self, node: Node, degree: int, used: Sequence[int]) -> Sequence[int]:
        """The places along which an operator may be cut into ``degree`` pieces, if those in
        ``used`` are cut already. Copies and partial sums that pass through exclude each other."""
        return self._known_places[node, degree, tuple(used)]

    def _find_places(self, cut: tuple[Node, int, tuple[int, ...]]) -> Sequence[int]:
        node, degree, used = cut
        axes = self.spaces.of(node).axes
        through = any(at >= 0 and passes(axes[at]) for at in used)
        places = [
            at
            for at, axis in enumerate(axes)
            if at not in used
            and not (passes(axis) and (through or REPLICATE in used))
            and self.spaces.fits(node, at, degree)
        ]
        return places if through or REPLICATE in used else [*places, REPLICATE]

    def _region(self, node: Node) -> Sequence[Node]:
        """A set of connected operators: a branch, or some around an operator."""
        random = self.random
        if random.random() < 0.4:
            return random.choice(self._regions)
        region = {node: None}
        for _ in range(random.randint(1, LONGEST)):
            edges = self._edges[random.choice([*region])]
            if edges:
                region[random.choice(edges).other] = None
        return [*region]

    def _relocated(self, now: Mappings, node: Node) -> Mappings:
        """Operators that share their devices, on other devices; or two such sets, each in the place
        of the other."""
        random, other = self.random, self.random.choice(self.graph.operators)
        some, place = self._sharing(now, node), now[other].start
        if random.random() < EXCHANGED:
            if place == now[node].start:
                return {}
            back = self._sharing(now, other)
            return {**self._at(now, back, now[node].start), **self._at(now, some, place)}
        start = place if random.random() < TO_USED else random.randrange(self.devices)
        return self._at(now, some, start)

    def _sharing(self, now: Mappings, node: Node) -> Sequence[Node]:
        """The connected operators on the same devices as an operator, or some around it."""
        random, mapping = self.random, now[node]
        most = random.randint(1, LONGEST) if random.random() < IN_PART else len(now)
        sharing, waiting = {node: None}, [node]
        while waiting and len(sharing) < most:
            for edge in self._edges[waiting.pop(random.randrange(len(waiting)))]:
                like, other = now[edge.other], edge.other
                same = like.start == mapping.start and like.last == mapping.last
                if same and other not in sharing:
                    sharing[other] = None
                    waiting.append(other)
        return [*sharing]

    def _at(self, now: Mappings, some: Sequence[Node], start: int) -> Mappings:
        """Operators on the same devices, on as many devices that begin at ``start``, or at the last
        place where they have room."""
        width = now[some[0]].last - now[some[0]].start
        start = min(start, self.devices - 1 - width)
        return {node: now[node].moved(start) for node in some}

    def _spread(self, seed: Node, mapping: OperatorMapping, region: Sequence[Node]) -> Mappings:
        """Mappings of a region, aligned with that of one of its operators."""
        made, waiting, within = {seed: mapping}, [seed], set(region)
        while waiting:
            node = waiting.pop()
            for edge in self._edges[node]:
                if edge.other in within and edge.other not in made:
                    made[edge.other] = self._aligned(made[node], edge)
                    waiting.append(edge.other)
        return made

    def _aligned(self, mapping: OperatorMapping, edge: _Edge) -> OperatorMapping:
        """The mapping of the other end of an edge that is aligned with a mapping of the first end:
        the same dimensions are cut on the same devices, as far as possible."""
        axes: list[MappedAxis] = []
        used: list[int] = []
        for axis in mapping.axes:
            wanted = None if axis.place == REPLICATE else edge.own[axis.place]
            free = self._places(edge.other, axis.degree, used)
            places = [at for at in free if at != REPLICATE and edge.others[at] == wanted]
            if wanted is None or not places:
                places += [at for at in free if at == REPLICATE]
                places.append(_NOTHING)
            place = self.random.choice(places)
            if place != _NOTHING:
                used.append(place)
                axes.append(axis._replace(place=place))
        return OperatorMapping(mapping.start, tuple(axes))

    def _beside(self, node: Node, like: OperatorMapping) -> OperatorMapping:
        """A mapping of an operator on the devices of a neighbour, cut along any axes. Where the
        neighbour's tensor has to move anyway, another cut may cost no more and save later moves."""
        axes: list[MappedAxis] = []
        used: list[int] = []
        for axis in like.axes:
            place = self.random.choice([*self._places(node, axis.degree, used), _NOTHING])
            if place != _NOTHING:
                used.append(place)
                axes.append(axis._replace(place=place))
        return OperatorMapping(like.start, tuple(axes))

    def _begun(self, now: Mappings, region: Sequence[Node]) -> Mappings:
        """A region, moved to higher or lower devices."""
        first = min(now[node].start for node in region)
        last = max(now[node].last for node in region)
        by = self.random.randint(-first, self.devices - 1 - last)
        return {node: now[node].moved(now[node].start + by) for node in region}

    def _on_group(self, now: Mappings, region: Sequence[Node]) -> Mappings:
        """A region, moved to a group of consecutive devices. Each operator is cut as before as far
        as possible, on as many of these devices as divide it."""
        size = self.random.randint(1, self.devices)
        start = self.random.randrange(self.devices - size + 1)
        return {node: self._resized(node, now[node], start, size) for node in region}

    def _apart(self, now: Mappings, branches: Sequence[Branch]) -> Mappings:
        """Branches on neighbouring groups of devices. Moving one branch alone to fewer devices
        would gain nothing as long as the others are on all."""
        random = self.random
        made: dict[Node, OperatorMapping] = {}
        groups = self._groups(len(branches))
        for branch, (start, size) in zip(branches, groups, strict=True):
            seed = random.choice(branch)
            like = random.choice((now[seed], OperatorMapping(0)))
            made.update(self._spread(seed, self._resized(seed, like, start, size), branch))
        return made

    def _groups(self, count: int) -> list[tuple[int, int]]:
        """The first device and the size of ``count`` neighbouring groups of devices, in random
        order. If there are more groups than devices, each has one device, and some share theirs."""
        random, devices = self.random, self.devices
        ends = [at * devices // count for at in range(1, count)]
        if count <= devices and random.random() < 0.5:
            ends = sorted(random.sample(range(1, devices), count - 1))
        groups = [(start, max(1, end - start)) for start, end in pairwise([0, *ends, devices])]
        random.shuffle(groups)
        return groups

    def _resized(self, node: Node, now: OperatorMapping, start: int, size: int) -> OperatorMapping:
        places = now.places or self._places(node, size, ())
        if not places or size == 1:
            return OperatorMapping(start)
        place = self.random.choice(places)
        if place != REPLICATE:
            while size > 1 and not self.spaces.fits(node, place, size):
                size -= 1
        return OperatorMapping.packed(start, [(place, size)] if size > 1 else ())


_NOTHING = -9
"""Stands for no axis at all."""
