"""Masks of strategies: which a planner may use, all of them or those of a family."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.schedule import trace
from pcg.types.local import Axis
from search.choices import IndexRole
from search.map.space.samples import sampled
from search.map.space.strategies import IDLE, REPLICATE, Space

UNUSED = (IDLE, REPLICATE)
"""What a strategy has along mesh axes that cut nothing of an operator."""

Mask = NDArray[np.bool_]
Allowed = Callable[[Node, Space], Mask]
"""Of the strategies of an operator, which may be used; one at least."""


def everything(node: Node, space: Space) -> Mask:
    """Allow all."""
    return np.ones(len(space), bool)


def data_parallel(graph: Graph) -> Allowed:
    """Every operator cut along the batch alone, and weights copied."""
    batch = batch_axes(graph)

    def allowed(node: Node, space: Space) -> Mask:
        return _fully(space, batch.get(node))

    return allowed


def expert(graph: Graph) -> Allowed:
    """Data parallelism, but tables of embeddings cut along anything but the batch: what experts do
    for recommendation models (Unity, section 6.2)."""
    batch = batch_axes(graph)

    def allowed(node: Node, space: Space) -> Mask:
        own = batch.get(node)
        if _is_table(node):
            return _only(space, {axis.name for axis in space.axes} - {own})
        return _fully(space, own)

    return allowed


def has_tables(graph: Graph) -> bool:
    """Whether a graph looks rows of tables up."""
    return any(_is_table(node) for node in graph.nodes)


def _is_table(node: Node) -> bool:
    return node.name.startswith("embedding")


def tensor_parallel(graph: Graph, mesh_axes: int, inner: int) -> Allowed:
    """The batch cut along the outer mesh axes, one other index along the ``inner`` last ones, which
    is data x tensor parallelism in Megatron's manner."""
    batch = batch_axes(graph)
    outer = mesh_axes - inner

    def allowed(node: Node, space: Space) -> Mask:
        own = batch.get(node)
        names = [axis.name for axis in space.axes]
        places = [names.index(own)] if own in names else UNUSED
        first = np.isin(space.strategies[:, :outer], places).all(axis=1)
        last = space.strategies[:, outer:]
        one = (last == last[:, :1]).all(axis=1) if inner else np.ones(len(space), bool)
        mask = first & one
        return mask if mask.any() else _fully(space, own)

    return allowed


def batch_axes(graph: Graph) -> Mapping[Node, str]:
    """The index of each operator that runs over the samples: the first dimension of the inputs that
    have some, and what becomes of it. The graph may be cut."""
    samples: dict[Value, int] = dict.fromkeys(sampled(graph), 0)
    names: dict[Node, str] = {}
    for node in graph.nodes:
        if node.is_leaf:
            continue
        if node.is_parallel:
            continue
        ranks = tuple(value.rank for value in node.inputs)
        read = [samples.get(trace(value)[0]) for value in node.inputs]
        for axis in node.operator_call.typing(ranks).axes:
            pairs = zip(axis.operands, read, strict=True)
            if any(dim is not None and dim == sample for dim, sample in pairs):
                names[node] = axis.name
                for port, dim in enumerate(axis.outputs):
                    if dim is not None:
                        samples[node.value(port)] = dim
                break
    return names


def closed(graph: Graph) -> list[Node]:
    """The operators that read samples along which they can't be cut, such as a batch norm, which
    reduces along the batch and keeps it."""
    samples: dict[Value, int] = dict.fromkeys(sampled(graph), 0)
    closing: list[Node] = []
    for node in graph.nodes:
        if node.is_leaf:
            continue
        ranks = tuple(value.rank for value in node.inputs)
        equation = node.operator_call.instance(ranks)
        read = [(i, samples[value]) for i, value in enumerate(node.inputs) if value in samples]
        if not read:
            continue
        name = equation.operands[read[0][0]].dims[read[0][1]].names[0]
        if all(axis.name != name for axis in node.operator_call.typing(ranks).axes):
            closing.append(node)
        for port, output in enumerate(equation.outputs):
            for position, dim in enumerate(output.dims):
                if name in dim.names:
                    samples[node.value(port)] = position
    return closing


def is_weight(value: Value) -> bool:
    """Whether a value is a weight, however it is cut and moved."""
    source = trace(value)[0].node
    return source.is_weight


def both(first: Allowed, second: Allowed) -> Allowed:
    """What both allow; what the second does where they have nothing in common."""

    def allowed(node: Node, space: Space) -> Mask:
        common = first(node, space) & second(node, space)
        return common if common.any() else second(node, space)

    return allowed


def along(graph: Graph, dimensions: Collection[IndexRole]) -> Allowed:
    """Cuts of indices of some kinds alone: *data* runs over the samples, *spatial* over the further
    dimensions of what is an image (in a sum over them as well), *reduction* is summed away, *head*
    is shared by all that an operator of three operands or more reads, *model* is any other.
    *Pipeline* is no cut of an operator."""
    batch = batch_axes(graph)

    def allowed(node: Node, space: Space) -> Mask:
        kinds = [dimension_of(node, axis, batch.get(node)) for axis in space.axes]
        places = [i for i, kind in enumerate(kinds) if kind in dimensions]
        return np.asarray(np.isin(space.strategies, [*places, *UNUSED]).all(axis=1))

    return allowed


def dimension_of(node: Node, axis: Axis, batch: str | None) -> IndexRole:
    """What an index of an operator runs over. ``batch``: the index that runs over the samples."""
    if axis.name == batch:
        return IndexRole.DATA
    image = any(v.rank == 4 for v in node.inputs) and axis.operands[0] in (2, 3)
    weights = (dim for dim, v in zip(axis.operands, node.inputs, strict=True) if is_weight(v))
    if image and all(dim is None for dim in weights):
        return IndexRole.SPATIAL
    if all(dim is None for dim in axis.outputs):
        return IndexRole.REDUCTION
    if len(node.inputs) > 2 and all(dim is not None for dim in axis.operands):
        return IndexRole.HEAD
    return IndexRole.MODEL


def _fully(space: Space, name: str | None) -> Mask:
    """The strategy that cuts one index along all mesh axes; where none does, those that cut no
    other index. What has no such index computes from weights alone, and may be cut in any way."""
    names = [axis.name for axis in space.axes]
    if name is None:
        return np.ones(len(space), bool)
    if name in names:
        full = (space.strategies == names.index(name)).all(axis=1)
        if full.any():
            return full
    return _only(space, {name})


def _only(space: Space, names: Collection[str | None]) -> Mask:
    """The strategies that cut indices of some names only; the uncut one at least."""
    places = [i for i, axis in enumerate(space.axes) if axis.name in names]
    return np.asarray(np.isin(space.strategies, [*places, *UNUSED]).all(axis=1))
