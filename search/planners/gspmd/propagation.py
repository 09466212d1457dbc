"""Propagation: shardings of all tensors of a graph from those of a few.

Problem: users annotate some tensors; every other one is to have the sharding that follows.

Method: GSPMD's (Xu et al., 2021, section 3.5), with the levels of XLA's sharding propagation. A
named axis that shards an index of an operator in one of its tensors may shard it in the others.
Level 0 passes through operators whose result has all indices of an operand, as element-wise ones
do, and from such an operand alone; level 1 through all others, contracted indices among them; level
2 from a result back to an operand that is broadcast; level 3 forward from that. Each level goes
forward and backward over the graph until nothing changes, before the next begins. Shardings that
are compatible are merged, axis by axis; where a tensor has an axis along another dimension already,
or its size does not divide, it stays as it is, and that is told. What users said is never changed,
but for dimensions that they left open. What no level reaches is replicated.

Complexity: named axes times dimensions that two tensors of an operator share, for each sweep, of
which there are at most as many as tensors times axes; few in practice. Shardings only ever grow, so
where none was refused the fixpoint is the least closed one, whatever the order of operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from pcg.graph.graph import Graph, Node, Value
from pcg.readings.kind import kind_of
from pcg.types.local import Axis
from search.planners.gspmd.annotations import NamedMesh, TensorAnnotation

PASS_THROUGH, ANY, BROADCAST_BACK, BROADCAST = range(4)
"""The levels of aggressiveness."""

TensorSharding = Mapping[int, int]
"""The dimension that each named axis shards; those that shard none are left out."""


class Link(NamedTuple):
    """A way for shardings, from a dimension of a tensor to one of another."""

    level: int
    source: Value
    source_dim: int
    target: Value
    target_dim: int


class Refusal(NamedTuple):
    """A tensor did not take a named axis along a dimension, which came from an operator."""

    value: Value
    axis: int
    dim: int
    operator: Node


@dataclass(frozen=True)
class Propagated:
    """The shardings of all tensors; tensors without an entry are replicated."""

    shardings: Mapping[Value, TensorSharding]
    refusals: tuple[Refusal, ...]
    """Where shardings were not compatible, in the order in which they met."""


def links(node: Node, axes: Iterable[Axis]) -> tuple[list[Link], list[Link]]:
    """The ways forward, to the results of an operator, and backward, to its operands. ``axes``: the
    indices along which it may be cut."""
    axes = tuple(axes)
    results = [axis for axis in axes if any(dim is not None for dim in axis.outputs)]
    local = kind_of(node) != "contraction" and len(results) == len(axes)
    forward: list[Link] = []
    backward: list[Link] = []
    for axis in axes:
        read = [(v, d, i) for i, v in enumerate(node.inputs) if (d := axis.operands[i]) is not None]
        made = [(node.value(p), d) for p, d in enumerate(axis.outputs) if d is not None]
        for value, dim, position in read:
            whole = all(one.operands[position] is not None for one in results)
            there = ANY if not local else PASS_THROUGH if whole else BROADCAST
            back = ANY if not local else PASS_THROUGH if whole else BROADCAST_BACK
            forward += [Link(there, value, dim, *place) for place in made]
            backward += [Link(back, *place, value, dim) for place in made]
            others = [(v, d) for v, d, at in read if at != position]
            backward += [Link(ANY, *place, value, dim) for place in others if not made]
    return forward, backward


@dataclass
class Propagation:
    """Shardings of one graph while they grow. ``axes``: of each operator, the indices along which
    it may be cut."""

    mesh: NamedMesh
    axes: Mapping[Node, Sequence[Axis]]
    annotations: Mapping[Value, TensorAnnotation]
    _state: dict[Value, dict[int, int]] = field(init=False)
    _refused: dict[Refusal, None] = field(init=False, default_factory=dict[Refusal, None])

    def __post_init__(self) -> None:
        self._state = {value: dict(own.axes) for value, own in self.annotations.items()}

    def run(self, operators: Sequence[Node]) -> Propagated:
        """To the fixpoint of all levels. ``operators``: in the order in which they are visited."""
        ways = [(node, *links(node, self.axes[node])) for node in operators]
        for level in range(BROADCAST + 1):
            while self._swept(ways, level):
                pass
        shardings = {value: own for value, own in self._state.items() if own}
        return Propagated(shardings, tuple(self._refused))

    def _swept(self, ways: Sequence[tuple[Node, list[Link], list[Link]]], level: int) -> bool:
        """Once forward and once backward; whether anything changed."""
        changed = False
        for node, forward, _ in ways:
            changed |= self._passed(node, forward, level)
        for node, _, backward in reversed(ways):
            changed |= self._passed(node, backward, level)
        return changed

    def _passed(self, node: Node, own: Iterable[Link], level: int) -> bool:
        changed = False
        for link in own:
            if link.level > level:
                continue
            for axis, dim in self._state.get(link.source, {}).items():
                if dim == link.source_dim:
                    changed |= self._taken(link.target, axis, link.target_dim, node)
        return changed

    def _taken(self, value: Value, axis: int, dim: int, node: Node) -> bool:
        """Whether a tensor takes an axis along a dimension that it did not have."""
        known = self._state.get(value, {})
        stated = self.annotations.get(value)
        if known.get(axis) == dim or (stated is not None and dim not in stated.open):
            return False
        parts = prod(self.mesh.sizes[other] for other, at in known.items() if at == dim)
        divides = value.type.shape[dim] % (parts * self.mesh.sizes[axis]) == 0
        if axis in known or not divides:
            self._refused.setdefault(Refusal(value, axis, dim, node))
            return False
        self._state.setdefault(value, {})[axis] = dim
        return True


def propagated(
    graph: Graph,
    mesh: NamedMesh,
    axes: Mapping[Node, Sequence[Axis]],
    annotations: Mapping[Value, TensorAnnotation],
) -> Propagated:
    """The shardings of all tensors of a graph."""
    return Propagation(mesh, axes, annotations).run(graph.operators)
