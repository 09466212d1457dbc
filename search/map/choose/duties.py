"""What each operator of a graph has to do in a training step besides computing forward."""

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
    """An operator works out the gradients of the operands in ``needs``. It exchanges those of
    ``weights``, the operands of which it is the first reader, and updates them. It keeps what is
    ``saved`` for back-propagation, and adds up so many ``parts`` of the gradient of each output.
    ``use`` is what of it is a kernel."""

    needs: frozenset[int]
    weights: tuple[int, ...]
    saved: Reads
    parts: tuple[int, ...]
    use: KernelUse

    @property
    def without_weights(self) -> Duties:
        """The same, if the weights were another's to exchange and update."""
        return replace(self, weights=())


def duties_in(
    graph: Graph,
    nodes: Collection[Node],
    saved: Mapping[Node, Reads] = MappingProxyType({}),
    *,
    compiled: bool = False,
) -> dict[Node, Duties]:
    """The duties of some operators of a graph, in their order. ``saved``: what is kept for
    back-propagation, where that counts; ``compiled``: whether element-wise operators share
    kernels."""
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
