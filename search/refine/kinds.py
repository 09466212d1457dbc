"""The operators of a graph, each by its kind (``search.refine.pieces``), and their values."""

from __future__ import annotations

from pcg.graph.graph import Graph, Node
from pcg.readings.kernels import kernel_uses
from pcg.readings.work import gradient_nodes
from search.refine.pieces import OperatorKind, OperatorPieces


class GraphKinds:
    """A graph, as its plans are put together from pieces. Operators and values are referred to by
    numbers, in order."""

    def __init__(self, graph: Graph, pieces: OperatorPieces) -> None:
        self.graph, self.nodes = graph, graph.operators
        self.values = tuple(value for node in graph.nodes for value in node.outputs)
        numbers = {value: number for number, value in enumerate(self.values)}
        self.makes = tuple(tuple(numbers[v] for v in node.outputs) for node in self.nodes)
        """For each operator, its outputs."""
        self.reads = tuple(tuple(numbers[v] for v in node.inputs) for node in self.nodes)
        """For each operator, its operands."""
        self.is_weight = tuple(value.node.is_weight for value in self.values)
        self.outputs = tuple(numbers[value] for value in graph.outputs)
        """The outputs of the graph."""
        self.makers = {
            value: (number, port)
            for number, values in enumerate(self.makes)
            for port, value in enumerate(values)
        }
        """For each value that an operator makes: that operator, and the port."""
        wanting = gradient_nodes(graph)
        self.is_trained = tuple(value.node in wanting for value in self.values)
        """For each value, whether it needs a gradient."""
        self.kinds = _kinds(graph, pieces, wanting)
        """The number of each operator's kind."""

    @property
    def has_loss(self) -> bool:
        """Whether the first output is a scalar, at which gradients begin."""
        return has_loss(self.graph)


def has_loss(graph: Graph) -> bool:
    return not graph.outputs[0].type.rank


def _kinds(graph: Graph, pieces: OperatorPieces, wanting: frozenset[Node]) -> tuple[int, ...]:
    uses = kernel_uses(graph, compiled=pieces.cost.training.compiled)
    live = set(graph.outputs[:1] if has_loss(graph) else graph.outputs)
    left, kinds = frozenset(graph.outputs), list[int]()
    for node in reversed(graph.operators):
        needs = None
        if node in wanting and not live.isdisjoint(node.outputs):
            live.update(node.inputs)
            needs = frozenset(i for i, value in enumerate(node.inputs) if value.node in wanting)
        kind = OperatorKind(
            node,
            pieces.builder.spaces.kind(node),
            needs,
            uses[node],
            tuple(v.node.leaf.kind if v.node.is_leaf else None for v in node.inputs),
            tuple(node.inputs.index(value) for value in node.inputs),
            tuple(value in left for value in node.outputs),
        )
        kinds.append(pieces.kinds[kind])
    return tuple(reversed(kinds))
