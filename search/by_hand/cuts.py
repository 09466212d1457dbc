"""Which strategies a plan by hand leaves to each operator.

Tensor parallelism is Megatron's (Shoeybi et al., 2019, section 3): columns of one product, rows of
the next, and in between what follows; tables of tokens by rows. With sequence parallelism
(Korthikanti et al., MLSys 2023) what is left is cut along one index of its own among the same
devices, most often the sequence. The batch is cut among all other devices. Of what is left open,
the least sum of seconds decides (``search.mesh.choose``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Graph, Node, Value
from pcg.readings.work import gradient_nodes
from pcg.types.local import Axis
from search.mesh.plan.megatron import by_columns, followed
from search.mesh.space.allow import UNUSED, Allowed, Mask, batch_axes
from search.mesh.space.axes import Mesh
from search.mesh.space.strategies import REPLICATE, Space, passes

Indices = Mapping[Node, str | None]
"""The index that tensor parallelism cuts of each operator that reads samples."""


def by_hand(
    graph: Graph, space_of: Callable[[Node], Space], mesh: Mesh, tensor: int, *, sequence: bool
) -> Allowed:
    """What tensor parallelism of a degree, and data parallelism beside it, may use. ``sequence``:
    whether the rest is cut among the tensor-parallel devices too."""
    batch, indices = batch_axes(graph), _indices(graph)
    inner = np.array([prod(mesh.primes[place:]) <= tensor for place in range(len(mesh))], bool)
    masks: dict[Node, Mask] = {}
    for node, name in indices.items():
        mask = _mask(space_of(node), inner, batch.get(node), name, sequence=sequence)
        if mask is not None:
            masks[node] = mask

    def allowed(node: Node, space: Space) -> Mask:
        return masks.get(node, np.ones(len(space), bool))

    return allowed


def _mask(
    space: Space, inner: NDArray[np.bool_], samples: str | None, name: str | None, *, sequence: bool
) -> Mask | None:
    """The strategies with samples along the outer mesh axes, and along the inner ones an index of
    a name, or else one that is free, or none."""
    names = [axis.name for axis in space.axes]
    places = [names.index(samples)] if samples in names else UNUSED
    data = np.isin(space.strategies[:, ~inner], places).all(axis=1)
    within = space.strategies[:, inner]
    whole = data & (within == REPLICATE).all(axis=1)
    if name in names:
        named = data & (within == names.index(name)).all(axis=1)
        if named.any():
            return named
    elif name is None and sequence and inner.any():
        cut = [place for place, axis in enumerate(space.axes) if not passes(axis)]
        alike = data & (within == within[:, :1]).all(axis=1) & np.isin(within[:, 0], cut)
        if alike.any():
            return alike
    return whole if whole.any() else None


def _indices(graph: Graph) -> Indices:
    """What tensor parallelism cuts, for the operators that read more than weights."""
    batch = batch_axes(graph)
    constant = {node.value() for node in graph.leaves if node.is_weight}
    cut: dict[Value, int] = {}
    names: dict[Node, str | None] = {}
    for node in graph.operators:
        if constant.issuperset(node.inputs):
            constant.update(node.outputs)
            continue
        typing = node.operator_call.typing(tuple(value.rank for value in node.inputs))
        axes = [axis for axis in typing.axes if axis.name != batch.get(node)]
        if node not in batch:
            continue
        columns = by_columns(node, axes, constant)
        chosen = next(chain(_rows(node, axes), followed(node, axes, cut), columns), None)
        names[node] = None if chosen is None else chosen.name
        dims = (None,) * len(node.types) if chosen is None else chosen.outputs
        pairs = zip(node.outputs, dims, strict=True)
        cut.update((value, dim) for value, dim in pairs if dim is not None)
    _follow_readers(graph, names)
    return names


def _follow_readers(graph: Graph, names: dict[Node, str | None]) -> None:
    """Cut what no weight has a part in, such as a mask, as the first operator that reads it is
    cut."""
    wanted: dict[Value, int] = {}
    trained = gradient_nodes(graph)
    for node in reversed(graph.operators):
        typing = node.operator_call.typing(tuple(value.rank for value in node.inputs))
        if node not in trained:
            dims = [wanted.get(value) for value in node.outputs]
            ways = (a.name for a in typing.axes if any(_meets(a.outputs, dims)))
            names[node] = next(ways, None)
        for axis in typing.axes:
            if axis.name == names.get(node):
                pairs = zip(node.inputs, axis.operands, strict=True)
                wanted.update((value, dim) for value, dim in pairs if dim is not None)


def _meets(places: Sequence[int | None], wanted: Sequence[int | None]) -> Iterator[bool]:
    return (a is not None and a == b for a, b in zip(places, wanted, strict=True))


def _rows(node: Node, axes: Sequence[Axis]) -> Iterator[Axis]:
    """The rows of a table of tokens."""
    if node.name == "embedding" and node.inputs[1].node.is_weight:
        yield from (axis for axis in axes if axis.operands == (None, 0))
