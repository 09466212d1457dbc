"""Inserts an axis into a pair of graphs at every place that can take one.

A gap lies before, between or after the dimensions of a value. An operator takes a further axis at a
gap in one of its runs, in every operand and output that has the run. A gap where two runs meet has
a slot for each.
Method: slots that have to take an axis together are one place (disjoint sets of slots, like those
of dimensions in ``verifier.trusted.sizes.runs``).
Heuristic: the pair with more axes is proved afterwards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pcg.disjoint import DisjointSets
from pcg.errors import OperatorError
from pcg.graph.graph import Leaf, Node, Value
from pcg.graph.pairs import GraphPair, Outputs, both, halves, ports, remade, with_polynomials
from pcg.language.poly import Poly
from pcg.language.template import Declaration
from pcg.types.operator import Call, Operator, run_lengths
from verifier.trusted.sizes.runs import keeps_runs
from verifier.trusted.sizes.sizes import input_size

GapSlot = tuple[int, int, int, int]
"""(number of a node, port, gap, number of the axis in the gap)."""
RunGap = tuple[str, int, int]
"""(run, offset in the run, number of the axis there)."""
SLOTS = 2
"""The number of axes that a gap can take."""


def with_inserted_axes(pair: GraphPair) -> GraphPair:
    """The pair with one more axis at every place that can take one."""
    gaps = _Gaps(pair)
    places = gaps.free()
    try:
        return gaps.with_axes(places)
    except (ValueError, OperatorError):
        kept: list[frozenset[GapSlot]] = []
        for place in places:
            try:
                gaps.with_axes([*kept, place])
            except (ValueError, OperatorError):
                continue
            kept.append(place)
        return gaps.with_axes(kept)


@dataclass(frozen=True)
class _Part:
    """An operand or output of an operator. ``slots``: for each gap, the runs of its slots, or None.
    ``runs``: its runs. ``positions``: (attribute that is a position, the dimension it names)."""

    slots: tuple[tuple[RunGap | None, ...], ...]
    runs: frozenset[str]
    positions: tuple[tuple[str, int], ...]


def _parts(node: Node) -> tuple[_Part, ...]:
    call = node.operator_call
    moved = call.values.get("dim") if call.operator.parallel else None
    ranks = tuple(value.rank for value in node.inputs)
    return _parts_at(call.operator, call.positions, ranks, moved if isinstance(moved, int) else -1)


@lru_cache(maxsize=1 << 14)
def _parts_at(
    operator: Operator, positions_given: tuple[int, ...], ranks: tuple[int, ...], moved: int
) -> tuple[_Part, ...]:
    template = operator.template
    lengths = run_lengths(
        operator, ranks, dict(zip(template.positions, positions_given, strict=True))
    )
    return tuple(
        _part(declared, lengths, moved, keeps_runs(operator)) for declared in template.placing
    )


def _part(declared: Declaration, lengths: Mapping[str, int], moved: int, regular: bool) -> _Part:
    meeting: dict[int, list[tuple[str, int]]] = defaultdict(list)
    positions = [("dim", moved)] if moved >= 0 else []
    position = 0
    for dim in declared.dims:
        if dim.position is not None:
            positions.append((dim.position, position))
        if not dim.run:
            position += 1
            continue
        name = dim.names[0]
        for offset in range(lengths[name] + 1):
            meeting[position + offset].append((name, offset))
        position += lengths[name]
    slots = tuple(_slots(meeting[gap] if regular else []) for gap in range(position + 1))
    runs = frozenset(dim.names[0] for dim in declared.dims if dim.run)
    return _Part(slots, runs, tuple(positions))


def _slots(meeting: Sequence[tuple[str, int]]) -> tuple[RunGap | None, ...]:
    """The slots of a gap, by the runs that meet there: all for one run, or one for each of two."""
    if len(meeting) == 1:
        return tuple((*meeting[0], i) for i in range(SLOTS))
    if len(meeting) == SLOTS:
        return tuple((*run, 0) for run in meeting)
    return (None,) * SLOTS


class _Gaps:
    """The slots of a pair: classes of slots that take an axis together, and slots that cannot take
    one."""

    def __init__(self, pair: GraphPair) -> None:
        self._graph = both(pair)
        self._nodes = self._graph.nodes
        self._numbers = {node: number for number, node in enumerate(self._nodes)}
        self._same = DisjointSets[GapSlot]()
        self._blocked: set[GapSlot] = set()
        for node in self._nodes:
            if not node.is_leaf:
                self._visit(node)
        for a, b in zip(*pair, strict=True):
            for here, there in zip(self._slots(a, a.rank), self._slots(b, a.rank), strict=True):
                self._same.join(here, there)

    def _slots(self, value: Value, rank: int) -> list[GapSlot]:
        number = self._numbers[value.node]
        return [(number, value.port, gap, i) for gap in range(rank + 1) for i in range(SLOTS)]

    def _visit(self, node: Node) -> None:
        known: dict[RunGap, GapSlot] = {}
        counts: Counter[RunGap] = Counter()
        parts = _parts(node)
        for value, part in zip((*node.inputs, *ports(node)), parts, strict=True):
            slots = self._slots(value, len(part.slots) - 1)
            for slot, run in zip(slots, (run for gap in part.slots for run in gap), strict=True):
                if run is None:
                    self._blocked.add(slot)
                else:
                    counts[run] += 1
                    self._same.join(slot, known.setdefault(run, slot))
        having = Counter(name for part in parts for name in part.runs)
        # All operands that have the run take the axis, or none does.
        self._blocked |= {slot for run, slot in known.items() if counts[run] < having[run[0]]}

    def free(self) -> list[frozenset[GapSlot]]:
        """The sets of slots that take an axis together and include a slot of an input. Of sets that
        lie at the same gaps, only one is returned."""
        blocked = {self._same.root(slot) for slot in self._blocked}
        sets = self._same.sets()
        by_gaps: dict[frozenset[tuple[int, ...]], frozenset[GapSlot]] = {}
        for node in self._nodes:
            for slot in self._slots(node.value(), node.leaf.rank) if node.is_leaf else ():
                root = self._same.root(slot)
                if root in sets and root not in blocked:
                    gaps = frozenset(slot[:3] for slot in sets[root])
                    by_gaps.setdefault(gaps, frozenset(sets[root]))
        return list(by_gaps.values())

    def with_axes(self, places: Sequence[frozenset[GapSlot]]) -> GraphPair:
        """The pair with an axis in every slot of ``places``. Raises ValueError or OperatorError if
        an operator does not take one."""
        gaps: dict[tuple[int, int], list[int]] = defaultdict(list)
        for place in places:
            for number, port, gap, _ in place:
                gaps[number, port].append(gap)
        added = _AddedAxes(self._numbers, gaps)
        sizes = added.moved_sizes(self._nodes)

        def make(node: Node, inputs: Outputs) -> Node:
            made = added.to(node, sizes, inputs)
            for port, rank in enumerate(node.ranks):
                if made.ranks[port] != rank + added.up_to(node.value(port), rank):
                    raise ValueError(f"{node.name} has other ranks with the axes inserted")
            return made

        return halves(remade(self._graph, make))


@dataclass(frozen=True)
class _AddedAxes:
    """The gaps at which axes are added, by the number of a node and the port of its value."""

    numbers: Mapping[Node, int]
    gaps: Mapping[tuple[int, int], Sequence[int]]

    def up_to(self, value: Value, gap: int) -> int:
        """How many axes are added to a value at gaps up to ``gap``."""
        gaps = self.gaps.get((self.numbers[value.node], value.port), ())
        return sum(added <= gap for added in gaps)

    def moved_sizes(self, nodes: Sequence[Node]) -> dict[str, Poly]:
        """The new symbols of the sizes of inputs' dimensions that move, by their old symbols."""
        return {
            input_size(node.leaf.name, dim): Poly.of(input_size(node.leaf.name, dim + more))
            for node in nodes
            if node.is_leaf
            for dim in range(node.leaf.rank)
            if (more := self.up_to(node.value(), dim))
        }

    def to(self, node: Node, sizes: Mapping[str, Poly], inputs: Outputs) -> Node:
        """The node with the axes added, on operands that have them."""
        if isinstance(node.call, Leaf):
            rank = node.call.rank + self.up_to(node.value(), node.call.rank)
            return Node(Leaf(node.call.kind, node.call.name, rank))
        attributes = dict(node.call.attributes)
        for value, part in zip((*node.inputs, *ports(node)), _parts(node), strict=True):
            for name, dim in part.positions:
                attributes[name] = dim + self.up_to(value, dim)
        call = Call(node.call.operator, tuple(attributes.items()))
        return Node(with_polynomials(call, sizes), inputs)
