"""Data x tensor parallelism in Megatron's manner: columns of one product, then rows of the next.

A product with weights whose operand is whole is cut by columns of the weights. The operators that
follow work on their part, until a product cuts its weights by rows and leaves partial sums (Shoeybi
et al., Megatron-LM, 2019, section 3). So only every second product communicates. A search that adds
up seconds sees no difference to half as many bytes after each product; but these hold up the
exchange of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np

from pcg.graph.graph import Graph, Node, Value
from pcg.readings.kind import kind_of
from pcg.types.local import Axis
from search.map.space.allow import (
    UNUSED,
    Allowed,
    Mask,
    all_among,
    batch_axes,
    everything,
    uncuttable,
)
from search.map.space.strategies import REPLICATE, Space


class ColumnsThenRows:
    """The cuts of data x tensor parallelism in a graph. There are none if operators such as batch
    norms mix the samples. ``space_of``: returns the strategies of an operator."""

    def __init__(self, graph: Graph, space_of: Callable[[Node], Space]) -> None:
        self._batch, self._space_of = batch_axes(graph), space_of
        self._cuts = {} if uncuttable(graph) else _cuts(graph, self._batch)

    def along(self, mesh_axes: Collection[int]) -> Allowed | None:
        """Allow one strategy for each operator: products with weights cut along some mesh axes, and
        the batch along all others. Operators that compute from weights alone keep all strategies.
        None if no product can be cut so."""
        masks: dict[Node, Mask] = {}
        is_cut = False
        for node, name in self._cuts.items():
            strategies = _mask(self._space_of(node), mesh_axes, self._batch.get(node), name)
            if strategies is not None:
                masks[node], along = strategies
                is_cut |= along
        return partial(_allowed, masks) if is_cut else None


def _allowed(masks: Mapping[Node, Mask], node: Node, space: Space) -> Mask:
    return masks[node] if node in masks else everything(node, space)


def _mask(
    space: Space, mesh_axes: Collection[int], samples: str | None, name: str | None
) -> tuple[Mask, bool] | None:
    """The strategies of an operator that cut the index ``samples`` along the mesh axes not listed,
    and the index ``name``, or else none, along those listed; and whether ``name`` is cut. None if
    there is no such strategy."""
    names = [axis.name for axis in space.axes]
    tensor = [axis in mesh_axes for axis in range(space.strategies.shape[1])]
    places = [names.index(samples)] if samples in names else UNUSED
    data = all_among(space.strategies[:, np.invert(tensor)], places)
    for place in (names.index(name) if name in names else REPLICATE, REPLICATE):
        mask = data & (space.strategies[:, tensor] == place).all(axis=1)
        if mask.any():
            return mask, place != REPLICATE
    return None


def _cuts(graph: Graph, batch: Mapping[Node, str]) -> Mapping[Node, str | None]:
    """For each operator that reads more than weights, the index that is cut besides that of the
    samples (``batch``), or None."""
    constant = {node.value() for node in graph.leaves if node.is_weight}
    cut: dict[Value, int] = {}
    names: dict[Node, str | None] = {}
    for node in graph.operators:
        outputs = node.outputs
        if constant.issuperset(node.inputs):
            constant.update(outputs)
            continue
        typing = node.operator_call.typing(tuple(value.rank for value in node.inputs))
        axes = [axis for axis in typing.axes if axis.name != batch.get(node)]
        ways = chain(followed(node, axes, cut), by_columns(node, axes, constant))
        chosen = next(ways, None)
        names[node] = None if chosen is None else chosen.name
        dims = (None,) * len(outputs) if chosen is None else chosen.outputs
        cut.update((v, dim) for v, dim in zip(outputs, dims, strict=True) if dim is not None)
    return names


def followed(node: Node, axes: Sequence[Axis], cut: Mapping[Value, int]) -> Iterator[Axis]:
    """The indices along which operands are already cut."""
    for axis in axes:
        pairs = zip(axis.operands, node.inputs, strict=True)
        if any(dim is not None and dim == cut.get(value) for dim, value in pairs):
            yield axis


def by_columns(node: Node, axes: Sequence[Axis], constant: Collection[Value]) -> Iterator[Axis]:
    """The indices of a product that its weights have, and no other operand."""
    if kind_of(node) != "contraction":
        return
    for axis in axes:
        weights = [value in constant for value in node.inputs]
        reads = [dim is not None for dim in axis.operands]
        if reads == weights and axis.outputs[0] is not None:
            yield axis
