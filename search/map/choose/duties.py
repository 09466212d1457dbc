"""The work of each operator of a graph in a training step, besides its forward computation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from pcg.graph.graph import Graph, Node
from pcg.readings.kernel_use import KernelUse
from pcg.readings.kernels import kernel_uses
from pcg.readings.saved import Reads, gradient_parts
from pcg.readings.work import gradient_nodes


@dataclass(frozen=True)
class Duties:
    """The work of an operator. It computes the gradients of the operands in ``needs``. It exchanges
    and updates the weights among its operands of which it is the first reader (``weights``). It
    saves the tensors in ``saved`` for the backward pass. For each output, ``parts`` is the number
    of gradients that are added up. ``use`` says which part of the operator is a kernel."""

    needs: frozenset[int]
    weights: tuple[int, ...]
    saved: Reads
    parts: tuple[int, ...]
    use: KernelUse

    @property
    def without_weights(self) -> Duties:
        """The same duties, but without the exchange and update of weights."""
        return replace(self, weights=())


def duties_in(
    graph: Graph,
    nodes: Collection[Node],
    saved: Mapping[Node, Reads] = MappingProxyType({}),
    *,
    compiled: bool = False,
) -> dict[Node, Duties]:
    """The duties of some operators of a graph, in their order. ``saved``: the tensors that are
    saved for the backward pass, if these count; ``compiled``: whether element-wise operators are
    fused into shared kernels."""
    uses = kernel_uses(graph, compiled=compiled)
    trained, parts = gradient_nodes(graph), gradient_parts(graph)
    read: set[Node] = set()
    duties: dict[Node, Duties] = {}
    for node in nodes:
        needs = frozenset(i for i, value in enumerate(node.inputs) if value.node in trained)
        first: list[int] = []
        for position, value in enumerate(node.inputs):
            leaf = value.node
            if leaf.is_weight and leaf not in read:
                read.add(leaf)
                first.append(position)
        added = tuple(parts[value] for value in node.outputs)
        kept = saved.get(node, Reads())
        duties[node] = Duties(needs, tuple(first), kept, added, uses[node])
    return duties
