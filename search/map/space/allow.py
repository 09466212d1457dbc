"""Masks of strategies: those that a planner may use, such as all, or those of one family."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.schedule import trace
from pcg.types.local import Axis
from search.choices import IndexRole
from search.map.space.samples import sampled
from search.map.space.strategies import IDLE, REPLICATE, Space

UNUSED = (IDLE, REPLICATE)
"""The entries of a strategy for mesh axes that cut no index of the operator."""

Mask = NDArray[np.bool_]
Allowed = Callable[[Node, Space], Mask]
"""A function from an operator and its space to the mask of the strategies that may be used. The
mask allows at least one."""


def everything(node: Node, space: Space) -> Mask:
    """Allow all strategies."""
    return np.ones(len(space), bool)


def computed_once(allowed: Allowed) -> Allowed:
    """Allow the same strategies. The mask of an operator is computed once: the function is for the
    operators of one graph, with one space each."""
    masks: dict[Node, Mask] = {}

    def known(node: Node, space: Space) -> Mask:
        if node not in masks:
            masks[node] = allowed(node, space)
        return masks[node]

    return known


def data_parallel(graph: Graph) -> Allowed:
    """Allow cuts along the batch alone, with weights copied."""
    batch = batch_axes(graph)

    def allowed(node: Node, space: Space) -> Mask:
        return _fully(space, batch.get(node))

    return allowed


def expert(graph: Graph) -> Allowed:
    """Allow data parallelism, but for embedding tables every cut other than one along the batch.
    Experts choose so for recommendation models (Unity, section 6.2)."""
    batch = batch_axes(graph)

    def allowed(node: Node, space: Space) -> Mask:
        sample_index = batch.get(node)
        if _is_table(node):
            return _only(space, {axis.name for axis in space.axes} - {sample_index})
        return _fully(space, sample_index)

    return allowed


def has_tables(graph: Graph) -> bool:
    """Whether a graph has embedding tables, from which it looks rows up."""
    return any(_is_table(node) for node in graph.nodes)


def _is_table(node: Node) -> bool:
    return node.name.startswith("embedding")


def tensor_parallel(graph: Graph, mesh_axes: int, inner: int) -> Allowed:
    """Allow cuts of the batch along the outer mesh axes, and of one other index along the last
    ``inner`` mesh axes. This is data x tensor parallelism in Megatron's manner."""
    batch = batch_axes(graph)
    outer = mesh_axes - inner

    def allowed(node: Node, space: Space) -> Mask:
        sample_index = batch.get(node)
        names = [axis.name for axis in space.axes]
        places = [names.index(sample_index)] if sample_index in names else UNUSED
        first = all_among(space.strategies[:, :outer], places)
        last = space.strategies[:, outer:]
        alike = (last == last[:, :1]).all(axis=1) if inner else np.ones(len(space), bool)
        mask = first & alike
        return mask if mask.any() else _fully(space, sample_index)

    return allowed


@lru_cache(maxsize=16)
def batch_axes(graph: Graph) -> Mapping[Node, str]:
    """For each operator that reads samples, the index that runs over them. Samples run along the
    first dimension of some inputs (``sampled``), and are followed from operator to operator. The
    graph may be cut."""
    samples: dict[Value, int] = dict.fromkeys(sampled(graph), 0)
    names: dict[Node, str] = {}
    for node in graph.nodes:
        if node.is_leaf or node.is_parallel:
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


def uncuttable(graph: Graph) -> list[Node]:
    """The operators that cannot be cut along the samples that they read. A batch norm, for example,
    reduces along the batch and keeps it."""
    samples: dict[Value, int] = dict.fromkeys(sampled(graph), 0)
    found: list[Node] = []
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
            found.append(node)
        for port, output in enumerate(equation.outputs):
            for position, dim in enumerate(output.dims):
                if name in dim.names:
                    samples[node.value(port)] = position
    return found


def is_weight(value: Value) -> bool:
    """Whether a value is a weight, possibly cut or moved."""
    source = trace(value)[0].node
    return source.is_weight


def intersection(first: Allowed, second: Allowed) -> Allowed:
    """Allow the strategies that both functions allow; those of the second if there is no common
    one."""

    def allowed(node: Node, space: Space) -> Mask:
        common = first(node, space) & second(node, space)
        return common if common.any() else second(node, space)

    return allowed


def by_roles(graph: Graph, dimensions: Collection[IndexRole]) -> Allowed:
    """Allow cuts of indices with one of the given roles alone. *Data*: over the samples. *Spatial*:
    over the height or width of an image, also in a sum. *Reduction*: summed away. *Head*: shared by
    all operands of an operator with three or more. *Model*: any other index. *Pipeline* is no cut
    of an operator."""
    batch = batch_axes(graph)

    def allowed(node: Node, space: Space) -> Mask:
        kinds = [dimension_of(node, axis, batch.get(node)) for axis in space.axes]
        places = [i for i, kind in enumerate(kinds) if kind in dimensions]
        return all_among(space.strategies, [*places, *UNUSED])

    return allowed


def dimension_of(node: Node, axis: Axis, batch: str | None) -> IndexRole:
    """The role of an index of an operator. ``batch``: the index that runs over the samples."""
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
    """The strategy that cuts one index along all mesh axes. If there is none, those that cut no
    other index. An operator without such an index (``name`` is None) computes from weights alone,
    and may use all its strategies."""
    names = [axis.name for axis in space.axes]
    if name is None:
        return np.ones(len(space), bool)
    if name in names:
        full = (space.strategies == names.index(name)).all(axis=1)
        if full.any():
            return full
    return _only(space, {name})


def _only(space: Space, names: Collection[str | None]) -> Mask:
    """The strategies that cut only indices of the given names. The strategy without a cut is
    one."""
    places = [i for i, axis in enumerate(space.axes) if axis.name in names]
    return all_among(space.strategies, [*places, *UNUSED])


def all_among(rows: NDArray[np.int8], entries: Iterable[int]) -> Mask:
    """The rows whose entries are all among the given ones."""
    # For few entries, comparisons are much faster than numpy's search in a set.
    among = np.zeros(rows.shape, bool)
    for entry in entries:
        among |= rows == entry
    return np.asarray(among.all(axis=1))
