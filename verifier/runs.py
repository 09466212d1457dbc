"""Which axes of a pair of graphs may stand for any number of axes.

An operator treats the axes of a run (``a...``) alike: none is read at another index than its own.
An axis of a pair that stands in such runs only, on both sides, could be two axes of any sizes, or
none: the equations would be the same with two indices for the one, and so would its part of the
types. What is proved with one axis there is proved for every number of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pcg.graph import Graph, Leaf, Node, Value
from pcg.operator import Call, run_lengths
from pcg.template import Declared

Place = tuple[Value, int]
"""A dimension of a value."""
Group = tuple[tuple[str, int], ...]
"""Dimensions of inputs that are the same axis."""
Pair = tuple[tuple[Value, ...], tuple[Value, ...]]


def free_runs(left: Sequence[Value], right: Sequence[Value]) -> tuple[Group, ...]:
    """The axes of the inputs that may each stand for any number of axes."""
    axes = _Axes.of((tuple(left), tuple(right)))
    return tuple(group for group, _ in axes.free())


def widened(left: Sequence[Value], right: Sequence[Value], group: Group, count: int) -> Pair:
    """The pair with ``count`` axes in the place of one that may stand for any number."""
    pair = (tuple(left), tuple(right))
    axes = _Axes.of(pair)
    root = next(root for found, root in axes.free() if found == group)
    new: dict[Node, Node] = {}
    for node in Graph((*pair[0], *pair[1])).nodes:
        if isinstance(node.call, Leaf):
            more = sum(axes.root((node.value(), d)) == root for d in range(node.call.rank))
            rank = node.call.rank + more * (count - 1)
            new[node] = Node(Leaf(node.call.kind, node.call.name, rank))
            continue
        inputs = tuple(Value(new[v.node], v.port) for v in node.inputs)
        new[node] = Node(axes.shifted(node, root, count), inputs)
    sides = [tuple(Value(new[v.node], v.port) for v in side) for side in pair]
    return sides[0], sides[1]


@dataclass(frozen=True)
class _Part:
    """An operand or output of a node: its value, and of each dimension the pattern and the name of
    the axis of a run, or None."""

    value: Value
    axes: tuple[str | None, ...]
    positions: tuple[tuple[str, int], ...]
    """(attribute, dimension whose place it says)."""


def _parts(node: Node) -> Iterator[_Part]:
    call = node.operator_call
    template = call.operator.template
    given = dict(zip(template.positions, call.positions, strict=True))
    lengths = run_lengths(call.operator, tuple(v.rank for v in node.inputs), given)
    values = (*node.inputs, *(node.value(port) for port in range(len(node.ranks))))
    moved = call.values.get("dim")
    for value, declared in zip(values, template.placing, strict=True):
        axes, positions = _expanded(declared, lengths)
        if isinstance(moved, int):
            axes = [None if dim == moved else name for dim, name in enumerate(axes)]
            positions.append(("dim", moved))
        yield _Part(value, tuple(axes), tuple(positions))


def _expanded(
    declared: Declared, lengths: dict[str, int]
) -> tuple[list[str | None], list[tuple[str, int]]]:
    axes: list[str | None] = []
    positions: list[tuple[str, int]] = []
    for dim in declared.dims:
        if dim.position is not None:
            positions.append((dim.position, len(axes)))
        if dim.run:
            axes += [f"{dim.names[0]}{i}" for i in range(lengths[dim.names[0]])]
        else:
            axes.append(None)
    return axes, positions


class _Axes:
    """Dimensions that are the same axis (union and find), and those that are no part of a run."""

    def __init__(self) -> None:
        self._parent: dict[Place, Place] = {}
        self._fixed: set[Place] = set()
        self._leaves: list[Node] = []

    @staticmethod
    def of(pair: Pair) -> _Axes:
        axes = _Axes()
        for node in Graph((*pair[0], *pair[1])).nodes:
            if node.is_leaf:
                axes._leaves.append(node)
            else:
                axes._visit(node)
        for a, b in zip(*pair, strict=True):
            for dim in range(a.rank):
                axes._join((a, dim), (b, dim))
        return axes

    def _visit(self, node: Node) -> None:
        known: dict[str, Place] = {}
        for part in _parts(node):
            for dim, name in enumerate(part.axes):
                place = (part.value, dim)
                if name is None:
                    self._fixed.add(place)
                else:
                    self._join(place, known.setdefault(name, place))

    def root(self, place: Place) -> Place:
        while (parent := self._parent.get(place, place)) != place:
            place = parent
        return place

    def _join(self, a: Place, b: Place) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self._parent[a] = b

    def free(self) -> Iterator[tuple[Group, Place]]:
        """The axes of inputs that are in runs only, with what stands for each."""
        fixed = {self.root(place) for place in self._fixed}
        groups: dict[Place, list[tuple[str, int]]] = {}
        for node in self._leaves:
            for dim in range(node.leaf.rank):
                groups.setdefault(self.root((node.value(), dim)), []).append((node.leaf.name, dim))
        for root, group in groups.items():
            if root not in fixed:
                yield tuple(group), root

    def shifted(self, node: Node, root: Place, count: int) -> Call:
        """The call with its positions moved by the axes that come before them."""
        attributes = dict(node.operator_call.attributes)
        for part in _parts(node):
            for name, dim in part.positions:
                more = sum(self.root((part.value, before)) == root for before in range(dim))
                attributes[name] = dim + more * (count - 1)
        return Call(node.operator_call.operator, tuple(attributes.items()))
