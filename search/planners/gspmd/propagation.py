"""Propagation: shardings of all tensors of a graph from those of a few.

Problem: users annotate some tensors. Find the resulting shardings of all others.

Method: that of GSPMD (Xu et al., 2021, section 3.5), with the levels of XLA's sharding propagation.
A named axis that shards an index of an operator in one tensor may shard it in the operator's other
tensors. Level 0 passes through operators whose result has all indices of an operand, such as
element-wise ones, and from such an operand alone. Level 1 passes through all other operators,
contracted indices included. Level 2 passes from a result back to a broadcast operand, and level 3
forward from it. Each level sweeps forward and backward over the graph until nothing changes, before
the next begins. Compatible shardings are merged, axis by axis. If a tensor has an axis along
another dimension already, or its size does not divide, it stays as it is, and this is reported.
Annotations never change, except in dimensions that they leave open. Tensors that no level reaches
are replicated.

Complexity: for each sweep, the named axes times the dimensions that two tensors of an operator
share. There are at most as many sweeps as tensors times axes; few in practice. Shardings only grow.
So if none was refused, the fixpoint is the least closed one, whatever the order of operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from pcg.graph.graph import Graph, Node, Value
from pcg.readings.kind import kind_of
from pcg.types.local import Axis
from search.cost.progress import check_time
from search.planners.gspmd.annotations import NamedMesh, TensorAnnotation

PASS_THROUGH, ANY, BROADCAST_BACK, BROADCAST = range(4)
"""The levels of propagation, from cautious to aggressive."""

TensorSharding = Mapping[int, int]
"""The dimension that each named axis shards. Axes that shard none are left out."""


class DimensionLink(NamedTuple):
    """A link along which shardings pass, from a dimension of a tensor to a dimension of another."""

    level: int
    source: Value
    source_dim: int
    target: Value
    target_dim: int


class Refusal(NamedTuple):
    """A named axis that a tensor did not take along a dimension, and the operator that offered
    it."""

    value: Value
    axis: int
    dim: int
    operator: Node


@dataclass(frozen=True)
class PropagatedShardings:
    """The shardings of all tensors. Tensors without an entry are replicated."""

    shardings: Mapping[Value, TensorSharding]
    refusals: tuple[Refusal, ...]
    """The shardings that were not compatible, in the order in which they met."""


def links(node: Node, axes: Iterable[Axis]) -> tuple[list[DimensionLink], list[DimensionLink]]:
    """The links forward to the results of an operator, and backward to its operands. ``axes``: the
    indices along which it may be cut."""
    axes = tuple(axes)
    results = [axis for axis in axes if any(dim is not None for dim in axis.outputs)]
    local = kind_of(node) != "contraction" and len(results) == len(axes)
    forward: list[DimensionLink] = []
    backward: list[DimensionLink] = []
    for axis in axes:
        read = [(v, d, i) for i, v in enumerate(node.inputs) if (d := axis.operands[i]) is not None]
        made = [(node.value(p), d) for p, d in enumerate(axis.outputs) if d is not None]
        for value, dim, position in read:
            whole = all(one.operands[position] is not None for one in results)
            there = ANY if not local else PASS_THROUGH if whole else BROADCAST
            back = ANY if not local else PASS_THROUGH if whole else BROADCAST_BACK
            forward += [DimensionLink(there, value, dim, *place) for place in made]
            backward += [DimensionLink(back, *place, value, dim) for place in made]
            others = [(v, d) for v, d, at in read if at != position]
            backward += [DimensionLink(ANY, *place, value, dim) for place in others if not made]
    return forward, backward


@dataclass
class Propagation:
    """The shardings of one graph while they grow. ``axes``: for each operator, the indices along
    which it may be cut."""

    mesh: NamedMesh
    axes: Mapping[Node, Sequence[Axis]]
    annotations: Mapping[Value, TensorAnnotation]
    _state: dict[Value, dict[int, int]] = field(init=False)
    _refused: dict[Refusal, None] = field(init=False, default_factory=dict[Refusal, None])

    def __post_init__(self) -> None:
        self._state = {value: dict(own.axes) for value, own in self.annotations.items()}

    def run(self, operators: Sequence[Node]) -> PropagatedShardings:
        """Propagate to the fixpoint of all levels. ``operators``: in the order of a sweep."""
        ways = [(node, *links(node, self.axes[node])) for node in operators]
        for level in range(BROADCAST + 1):
            while self._swept(ways, level):
                pass
        shardings = {value: own for value, own in self._state.items() if own}
        return PropagatedShardings(shardings, tuple(self._refused))

    def _swept(
        self, ways: Sequence[tuple[Node, list[DimensionLink], list[DimensionLink]]], level: int
    ) -> bool:
        """Sweep once forward and once backward. Returns whether anything changed."""
        changed = False
        check_time()
        for node, forward, _ in ways:
            changed |= self._passed(node, forward, level)
        for node, _, backward in reversed(ways):
            changed |= self._passed(node, backward, level)
        return changed

    def _passed(self, node: Node, own: Iterable[DimensionLink], level: int) -> bool:
        changed = False
        for link in own:
            if link.level > level:
                continue
            for axis, dim in self._state.get(link.source, {}).items():
                if dim == link.source_dim:
                    changed |= self._taken(link.target, axis, link.target_dim, node)
        return changed

    def _taken(self, value: Value, axis: int, dim: int, node: Node) -> bool:
        """Let a tensor take an axis along a dimension. Returns whether this is new."""
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
) -> PropagatedShardings:
    """Propagate annotations to all tensors of a graph."""
    return Propagation(mesh, axes, annotations).run(graph.operators)
