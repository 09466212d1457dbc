"""The inputs of a graph that hold samples, as opposed to constants such as a mask.

Problem: a graph does not say which of its inputs hold samples. Method: samples run along the first
dimension of the first input, and of all inputs whose first dimension has the same length. A
constant may have this length by chance: a causal mask, for example, if there are as many tokens as
samples. It is recognized by an operator that reads samples at one index, and the first dimension of
the constant at another. Samples are at first those of the first input, then also those of inputs
that are read at the same index. This test is left out for values that depend on weights: the two
towers of a model each have samples of their own, and a product of both towers reads these at two
indices. Complexity: the number of operands, times that of inputs at most. Not exact: a constant of
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
    known, constants = {first.value()}, set[Value]()
    while len(known) + len(constants) < len(as_long):
        found = _Constants(graph, known, as_long)
        constants = found.constants - known
        if not (more := found.beside - known - constants):
            break
        known |= more
    return [value for value in as_long if value not in constants]


@dataclass
class _Constants:
    """Finds the ``constants``: inputs that are read beside samples at another index. Those that are
    read at the same index are ``beside``. ``known``: the inputs that hold samples; ``as_long``: the
    inputs whose first dimension is as long."""

    graph: Graph
    known: set[Value]
    as_long: list[Value]
    constants: set[Value] = field(init=False, default_factory=set[Value])
    beside: set[Value] = field(init=False, default_factory=set[Value])
    _samples: dict[Value, int] = field(init=False)
    """Values that depend on known inputs, each with the dimension along which its samples
    run."""
    _others: dict[Value, dict[Value, int]] = field(init=False)
    """Values that depend on other inputs alone. For each of these inputs, the dimension along which
    its first dimension runs."""

    def __post_init__(self) -> None:
        trained = gradient_nodes(self.graph)
        self._samples = dict.fromkeys(self.known, 0)
        self._others = {value: {value: 0} for value in self.as_long if value not in self.known}
        for node in self.graph.nodes:
            if not (node.is_leaf or node.is_parallel):
                self._read(node, trained)

    def _read(self, node: Node, trained: frozenset[Node]) -> None:
        read = [trace(value)[0] for value in node.inputs]
        axes = node.operator_call.typing(tuple(value.rank for value in node.inputs)).axes
        at = [i for i, value in enumerate(read) if value in self._samples]
        indices = {a.name for a in axes for i in at if a.operands[i] == self._samples[read[i]]}
        by_origin: dict[Value, set[str]] = {}
        for i, value in enumerate(read):
            for origin, dim in self._others.get(value, {}).items():
                names = {axis.name for axis in axes if axis.operands[i] == dim}
                by_origin.setdefault(origin, set()).update(names)
                if indices & names:
                    self.beside.add(origin)
                elif indices and names and value.node not in trained:
                    self.constants.add(origin)
        for axis in axes:
            for port, dim in enumerate(axis.outputs):
                if dim is not None and axis.name in indices:
                    self._samples[node.value(port)] = dim
                elif dim is not None and not at:
                    own = self._others.setdefault(node.value(port), {})
                    own.update((o, dim) for o, names in by_origin.items() if axis.name in names)
