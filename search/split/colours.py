"""Colours: what each operator of a graph looks like, so many operators far, before and after it.

Method: colour refinement (Weisfeiler and Leman, 1968). Operators have the same colour that are the
same by themselves and whose neighbours have the same colours, as often as there are rounds. Time is
that of the graph's edges, a round. Equal colours mean equal surroundings up to hashing by content,
which is exact; unequal graphs may still look alike, as refinement does not tell all graphs apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from pcg.graph.graph import Graph, Node

MOST_FREE = 1000
"""A graph of so many operators is planned operator by operator; in a larger one, operators of a
colour are planned alike."""
ROUNDS = 8
"""So many operators far, what is alike looks alike."""


def colours(
    graph: Graph, kind: Callable[[Node], Hashable], rounds: int = ROUNDS
) -> dict[Node, int]:
    """What each node looks like, so many nodes far: equal for those that look alike. ``kind``: what
    an operator is by itself."""
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
