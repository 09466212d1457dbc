"""The inputs of a graph that hold samples, as opposed to constants such as a mask.

Problem: a graph does not say which of its inputs hold samples. Method: samples run along the first
dimension of the first input, and of all inputs whose first dimension has the same length. A
constant may have this length by chance: a causal mask, for example, if there are as many tokens as
samples. It is recognized by an operator that reads the samples of the first input at one index, and
the first dimension of the constant at another. This test is left out for values that depend on
weights: the two towers of a model each have samples of their own, and a product of both towers
reads these at two indices. Complexity: linear in the number of operands. Not exact: a constant of
the same length that is never read beside samples counts as samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pcg.graph.graph import DRAWN, Graph, Node, Value
from pcg.placement.schedule import trace
from pcg.readings.work import gradient_nodes


def sampled(graph: Graph) -> list[Value]:
    """The inputs with samples along their first dimension. The graph may be cut."""
    inputs = [node for node in graph.leaves if node.leaf.kind == "input" and node.leaf.rank]
    first = next((n for n in inputs if not n.leaf.name.startswith(DRAWN)), None)
    if first is None:
        return [node.value() for node in inputs]
    as_long = [n.value() for n in inputs if n.types[0].shape[0] == first.types[0].shape[0]]
    constants = (
        _Constants(graph, first.value(), as_long).constants if len(as_long) > 1 else set[Value]()
    )
    return [value for value in as_long if value not in constants]


@dataclass
class _Constants:
    """Finds the ``constants``: inputs that are read beside samples at another index. ``first``: the
    input that holds samples for sure; ``as_long``: the inputs whose first dimension is as long."""

    graph: Graph
    first: Value
    as_long: list[Value]
    constants: set[Value] = field(init=False, default_factory=set[Value])
    _samples: dict[Value, int] = field(init=False)
    """Values that depend on the first input, each with the dimension along which its samples
    run."""
    _others: dict[Value, tuple[int, frozenset[Value]]] = field(init=False)
    """Values that depend on other inputs alone. Each has the dimension along which samples would
    run, and the inputs that it depends on."""

    def __post_init__(self) -> None:
        trained = gradient_nodes(self.graph)
        self._samples = {self.first: 0}
        self._others = {v: (0, frozenset((v,))) for v in self.as_long if v != self.first}
        for node in self.graph.nodes:
            if not (node.is_leaf or node.is_parallel):
                self._read(node, trained)

    def _read(self, node: Node, trained: frozenset[Node]) -> None:
        read = [trace(value)[0] for value in node.inputs]
        axes = node.operator_call.typing(tuple(value.rank for value in node.inputs)).axes
        at = [i for i, value in enumerate(read) if value in self._samples]
        may = [i for i, value in enumerate(read) if value in self._others]
        indices = {a.name for a in axes for i in at if a.operands[i] == self._samples[read[i]]}
        for i in may:
            dim, origins = self._others[read[i]]
            names = {axis.name for axis in axes if axis.operands[i] == dim}
            if indices and names and not indices & names and read[i].node not in trained:
                self.constants |= origins
        if not indices:
            indices = {
                a.name for a in axes for i in may if a.operands[i] == self._others[read[i]][0]
            }
        origins = frozenset[Value]().union(*(self._others[read[i]][1] for i in may))
        for axis in axes:
            if axis.name in indices:
                self._placed(node, axis.outputs, None if at else origins)

    def _placed(
        self, node: Node, dims: tuple[int | None, ...], origins: frozenset[Value] | None
    ) -> None:
        """Note along which dimensions of an operator's outputs samples run. ``origins``: the inputs
        on which this depends; None if it is sure."""
        for port, dim in enumerate(dims):
            if dim is not None and origins is None:
                self._samples[node.value(port)] = dim
            elif dim is not None and origins:
                self._others[node.value(port)] = dim, origins
