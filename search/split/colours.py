"""Colours: what the surroundings of each operator look like, up to some distance before and after
it.

Method: colour refinement (Weisfeiler and Leman, 1968). Operators get the same colour if they are
the same by themselves and their neighbours have the same colours, repeated for a number of rounds.
A round takes time in proportion to the edges of the graph. Equal colours mean equal surroundings up
to what refinement sees. This is exact: colours are compared by content. Refinement does not tell
all graphs apart, so different surroundings may still get one colour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from pcg.graph.graph import Graph, Node

MOST_FREE = 1000
"""A graph of up to this many operators is planned operator by operator. In a larger graph,
operators of one colour are planned alike."""
ROUNDS = 8
"""The distance, in operators, up to which surroundings are compared."""


def colours(
    graph: Graph, kind: Callable[[Node], Hashable], rounds: int = ROUNDS
) -> dict[Node, int]:
    """The colour of each node: equal for nodes whose surroundings look alike up to ``rounds`` nodes
    away. ``kind``: a key for an operator by itself."""
    known: dict[Hashable, int] = {}

    def number(look: Hashable) -> int:
        return known.setdefault(look, len(known))

    nodes = graph.nodes
    place = {node: at for at, node in enumerate(nodes)}
    reads = [[(place[v.node], v.port) for v in node.inputs] for node in nodes]
    read_by: list[list[tuple[int, int]]] = [[] for _ in nodes]
    for at, operands in enumerate(reads):
        for position, (source, _) in enumerate(operands):
            read_by[source].append((at, position))
    ends = Counter(value.node for value in graph.outputs)
    look = [number((_leaf(node) if node.is_leaf else kind(node), ends[node])) for node in nodes]
    for _ in range(rounds):
        look = [
            number(
                (
                    look[at],
                    tuple((look[source], port) for source, port in reads[at]),
                    tuple(sorted((look[reader], position) for reader, position in read_by[at])),
                )
            )
            for at in range(len(nodes))
        ]
    return dict(zip(nodes, look, strict=True))


def _leaf(node: Node) -> Hashable:
    return node.leaf.kind, node.leaf.type
