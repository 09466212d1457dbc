"""Slices of the batch in time, and the work of each operator for one of them.

The work for one of n slices is that of one of n devices under data parallelism. So an operator on
one slice has the same types as a task of the operator that is cut into n blocks in space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from pcg.graph.graph import Leaf, Node, Value
from pcg.types.tensor import ParallelTensor


@dataclass(frozen=True)
class Slices:
    """The slices in which operators take the batch. ``count``: their number; ``axes``: the sample
    index of each operator that works slice by slice. Other operators work once a step."""

    count: int = 1
    axes: Mapping[Node, str] = field(default_factory=dict[Node, str])

    def axis(self, node: Node) -> str | None:
        """The sample index of an operator that works slice by slice, or None."""
        return self.axes.get(node)

    def length(self, node: Node, axis: str, length: int) -> int:
        """The length of an index within one slice. ``length``: for the whole batch."""
        return length // self.count if self.axis(node) == axis else length

    def task(self, node: Node) -> Node:
        """A stand-in for an operator, with the work of one slice."""
        axis = self.axis(node)
        return node if axis is None or self.count == 1 else _sliced(node, axis, self.count)

    def elements(self, value: Value) -> int:
        """The elements of one slice of a value."""
        axis, shape = self.axis(value.node), list(value.type.shape)
        if axis is not None:
            ranks = tuple(v.rank for v in value.node.inputs)
            typing = value.node.operator_call.typing(ranks)
            dim = next(a.outputs[value.port] for a in typing.axes if a.name == axis)
            assert dim is not None
            shape[dim] //= self.count
        return prod(shape)


WHOLE = Slices()
"""The whole batch as one slice."""


def one_slice(node: Node) -> tuple[Node, bool]:
    """A stand-in for an operator of a sliced graph, with the work of one slice; and whether the
    operator has slices at all."""
    ranks = tuple(value.rank for value in node.inputs)
    for axis in node.operator_call.typing(ranks).axes:
        for value, dim in zip(node.inputs, axis.operands, strict=True):
            if dim is not None and (count := value.type.degrees.slices[dim]) > 1:
                return _sliced(node, axis.name, count), True
    return node, False


def _sliced(node: Node, name: str, count: int) -> Node:
    """An operator whose slices in time along an index are turned into blocks in space."""
    ranks = tuple(value.rank for value in node.inputs)
    axis = next(a for a in node.operator_call.typing(ranks).axes if a.name == name)
    pairs = zip(node.inputs, axis.operands, strict=True)
    cut = [_cut(value.type, dim, count) for value, dim in pairs]
    return Node(node.call, tuple(Node(Leaf("tensor", "operand", t.rank, t)).value() for t in cut))


def _cut(tensor: ParallelTensor, dim: int | None, count: int) -> ParallelTensor:
    degrees = tensor.degrees
    if dim is None:
        return replace(tensor, degrees=replace(degrees, copies=degrees.copies * count))
    dims = tuple(d * count if i == dim else d for i, d in enumerate(degrees.dims))
    times = tuple(1 if i == dim else t for i, t in enumerate(degrees.slices))
    return replace(tensor, degrees=replace(degrees, dims=dims, slices=times))
