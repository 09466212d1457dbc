"""Which inputs of a graph have samples, and which are constants, such as a mask.

Problem: a graph does not say what an input is. Method: samples run along the first dimension, of
the first input and of all that are as long. One that is as long by chance, such as a causal mask
of as many tokens as there are samples, is told by what reads it: an operator that reads the samples
of the first input at one index, and this input's first dimension at another. Only what depends on
no weight by then is told so, for two towers of a model each have samples of their own, which a
product of both reads at two indices. Complexity: linear in the operands. Not exact: a constant as
long as the samples that is never read beside them counts as samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pcg.graph.graph import DRAWN, Graph, Node, Value
from pcg.placement.schedule import trace
from pcg.readings.work import gradient_nodes


def sampled(graph: Graph) -> list[Value]:
    """The inputs that have samples along their first dimension. The graph may be cut."""
    inputs = [node for node in graph.leaves if node.leaf.kind == "input" and node.leaf.rank]
    first = next((n for n in inputs if not n.leaf.name.startswith(DRAWN)), None)
    if first is None:
        return [node.value() for node in inputs]
    as_long = [n.value() for n in inputs if n.types[0].shape[0] == first.types[0].shape[0]]
    constants = _Constants(graph, first.value(), as_long).told if len(as_long) > 1 else set[Value]()
    return [value for value in as_long if value not in constants]


@dataclass
class _Constants:
    """Those of some inputs that are read beside samples at another index. ``first``: what certainly
    has samples."""

    graph: Graph
    first: Value
    as_long: list[Value]
    told: set[Value] = field(init=False, default_factory=set[Value])
    _samples: dict[Value, int] = field(init=False)
    """Where the samples of the first input are, in what comes of it."""
    _others: dict[Value, tuple[int, frozenset[Value]]] = field(init=False)
    """Where those that other inputs may have are, in what comes of these alone; and of which."""

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
        own = {a.name for a in axes for i in at if a.operands[i] == self._samples[read[i]]}
        for i in may:
            dim, origins = self._others[read[i]]
            names = {axis.name for axis in axes if axis.operands[i] == dim}
            if own and names and not own & names and read[i].node not in trained:
                self.told |= origins
        if not own:
            own = {a.name for a in axes for i in may if a.operands[i] == self._others[read[i]][0]}
        origins = frozenset[Value]().union(*(self._others[read[i]][1] for i in may))
        for axis in axes:
            if axis.name in own:
                self._placed(node, axis.outputs, None if at else origins)

    def _placed(
        self, node: Node, dims: tuple[int | None, ...], origins: frozenset[Value] | None
    ) -> None:
        """What an operator makes has samples at some dimensions, certainly where no ``origins`` are
        given."""
        for port, dim in enumerate(dims):
            if dim is not None and origins is None:
                self._samples[node.value(port)] = dim
            elif dim is not None and origins:
                self._others[node.value(port)] = dim, origins
