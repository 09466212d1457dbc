"""The strategies that a plan by hand leaves to each operator.

Tensor parallelism is Megatron's (Shoeybi et al., 2019, section 3): the columns of one product are
cut, then the rows of the next product, and between them the operators that follow. Tables of tokens
are cut by rows, and logits by classes, as far as the loss. With sequence parallelism (Korthikanti
et al., MLSys 2023), the remaining operators are cut among the same devices along one index of their
own, most often the sequence. The batch is cut among all other devices. Where a choice is left, the
least sum of seconds decides (``search.map.choose``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from math import prod
from operator import mul

import numpy as np
from numpy.typing import NDArray

from pcg.graph.graph import Graph, Node, Value
from pcg.readings.work import gradient_nodes
from pcg.types.local import Axis
from search.cost.derivation import Derivation
from search.map.rules.cuts import with_unfolded
from search.map.rules.reduced import ReducedAxes
from search.map.space.allow import UNUSED, Allowed, Mask, all_among, batch_axes
from search.map.space.axes import Mesh
from search.map.space.strategies import REPLICATE, Space, passes
from search.plan.megatron import by_columns, followed
from substitutions.rules.concrete.rooted import RootedRules


def by_hand(
    graph: Graph, space_of: Callable[[Node], Space], mesh: Mesh, tensor: int, *, sequence: bool
) -> Allowed:
    """Allow the strategies of tensor parallelism with degree ``tensor`` beside data parallelism.
    ``sequence``: whether the remaining operators are cut among the tensor-parallel devices too."""
    batch, followed = batch_axes(graph), _tensor_parallel_cuts(graph)
    inner = np.array([prod(mesh.primes[place:]) <= tensor for place in range(len(mesh))], bool)
    left = followed.left if sequence else followed.ends
    masks: dict[Node, Mask] = {}
    for node, name in followed.names.items():
        mask = _mask(space_of(node), inner, batch.get(node), name, is_open=node in left)
        if mask is not None:
            masks[node] = mask

    def allowed(node: Node, space: Space) -> Mask:
        return masks.get(node, np.ones(len(space), bool))

    return allowed


def degrees_within_node(mesh: Mesh) -> list[int]:
    """The degrees of tensor parallelism along the innermost mesh axes of a node, ascending."""
    degrees = accumulate(reversed(mesh.primes), mul)
    return [degree for degree in degrees if degree <= mesh.machine.devices_per_node]


def _mask(
    space: Space, inner: NDArray[np.bool_], samples: str | None, name: str | None, *, is_open: bool
) -> Mask | None:
    """The strategies that cut the index ``samples`` along the outer mesh axes. Along the inner ones
    they cut the index ``name``, or any one index if ``is_open``, or else none. None if there is no
    such strategy."""
    names = [axis.name for axis in space.axes]
    places = [names.index(samples)] if samples in names else UNUSED
    data = all_among(space.strategies[:, ~inner], places)
    within = space.strategies[:, inner]
    wanted = [names.index(name)] if name in names else [REPLICATE]
    if is_open:
        wanted = [place for place, axis in enumerate(space.axes) if not passes(axis)]
    alike = data & (within == within[:, :1]).all(axis=1) if inner.any() else data
    for places_within in (wanted, [REPLICATE]):
        mask: Mask = np.logical_and(alike, all_among(within, places_within))
        if mask.any():
            return mask
    return None


def opened_ends(graph: Graph, rules: RootedRules) -> tuple[Graph, Derivation]:
    """The graph in which operators that read cut logits, such as a loss, are replaced by operators
    that may be cut too, where rules say how. Returns the graph and its derivation."""
    reduced, start = ReducedAxes.of(rules), Derivation.start(graph)
    ends = {node for node in _tensor_parallel_cuts(graph).ends if any(reduced.opened(node))}
    return with_unfolded(graph, start, ends, rules) if ends else (graph, start)


class _TensorParallelCuts:
    """The indices that tensor parallelism cuts in a graph.

    ``names``: for each operator the index that is cut, or None; ``left``: the operators that depend
    on weights and that tensor parallelism leaves whole; ``ends``: those among them that read a cut
    tensor, such as a loss of logits. Operators that read weights alone are none of these.
    """

    def __init__(self, graph: Graph) -> None:
        self.names: dict[Node, str | None] = {}
        self.left: set[Node] = set()
        self.ends: set[Node] = set()
        self._batch, self._trained = batch_axes(graph), gradient_nodes(graph)
        self._constant = {node.value() for node in graph.leaves if node.is_weight}
        self._cut: dict[Value, int] = {}
        for node in graph.operators:
            if self._constant.issuperset(node.inputs):
                self._constant.update(node.outputs)
            elif node in self._batch and node in self._trained:
                self._forward(node)
        self._backward(graph)

    def _forward(self, node: Node) -> None:
        axes = [axis for axis in _axes(node) if axis.name != self._batch[node]]
        columns = by_columns(node, axes, self._constant)
        chosen = next(chain(_rows(node, axes), followed(node, axes, self._cut), columns), None)
        if chosen is None:
            self.left.add(node)
            self.ends |= set() if self._cut.keys().isdisjoint(node.inputs) else {node}
        self.names[node] = None if chosen is None else chosen.name
        for value, dim in zip(node.outputs, chosen.outputs, strict=True) if chosen else ():
            if dim is not None:
                self._cut[value] = dim

    def _backward(self, graph: Graph) -> None:
        """Cut operators that depend on no weight, such as a mask, as their first reader wants."""
        wanted: dict[Value, int] = {}
        for node in reversed(graph.operators):
            if node not in self._trained:
                dims = [wanted.get(value) for value in node.outputs]
                ways = (axis.name for axis in _axes(node) if _meets(axis.outputs, dims))
                self.names[node] = next(ways, None)
            for axis in _axes(node):
                if axis.name == self.names.get(node):
                    pairs = zip(node.inputs, axis.operands, strict=True)
                    wanted.update((value, dim) for value, dim in pairs if dim is not None)


@lru_cache(maxsize=4)
def _tensor_parallel_cuts(graph: Graph) -> _TensorParallelCuts:
    return _TensorParallelCuts(graph)


def _axes(node: Node) -> Sequence[Axis]:
    return node.operator_call.typing(tuple(value.type.rank for value in node.inputs)).axes


def _meets(places: Sequence[int | None], wanted: Sequence[int | None]) -> bool:
    return any(a is not None and a == b for a, b in zip(places, wanted, strict=True))


def _rows(node: Node, axes: Sequence[Axis]) -> Iterator[Axis]:
    """The index over the rows of a table of tokens, if the operator is an embedding."""
    if node.name == "embedding" and node.inputs[1].node.is_weight:
        yield from (axis for axis in axes if axis.operands == (None, 0))
