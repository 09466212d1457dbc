"""Orders of issue: the order in which the forward pass of a plan computes its operators.

Any order will do in which each operator comes after those whose results it reads. The backward pass
goes through the operators in reverse. An order changes no value. It decides what a device computes
while it waits for other devices, and which communication is hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from pcg.graph.graph import Graph, Node
from pcg.placement.schedule import trace


def sources(node: Node) -> set[Node]:
    """Return the computing operators whose results an operator reads."""
    makers = (trace(value)[0].node for value in node.inputs)
    return {maker for maker in makers if not maker.is_leaf}


def order_problem(graph: Graph, order: Sequence[Node]) -> tuple[Node, str] | None:
    """Return None if operators are an order of issue of a graph. Otherwise return the first
    operator that is out of place, and why."""
    issued: set[Node] = set()
    for node in order:
        if node in issued:
            return node, "listed twice"
        if not sources(node) <= issued:
            return node, "issued before an operator whose result it reads"
        issued.add(node)
    missing = next((node for node in graph.computing if node not in issued), None)
    return None if missing is None else (missing, "not listed")


def has_orders(graph: Graph) -> bool:
    """Return whether the operators of a graph can be issued in several orders."""
    return any(before not in sources(node) for before, node in pairwise(graph.computing))


def ordered(graph: Graph, places: Mapping[Node, float]) -> tuple[Node, ...]:
    """Return the computing operators of a graph in an order of issue. Of those whose operands are
    computed, the one with the least place comes first (Kahn, CACM 1962, with a heap)."""
    nodes = graph.computing
    numbers = {node: number for number, node in enumerate(nodes)}
    makers = [sources(node) for node in nodes]
    waits = [len(own) for own in makers]
    readers: list[list[int]] = [[] for _ in nodes]
    for number, own in enumerate(makers):
        for maker in own:
            readers[numbers[maker]].append(number)
    ready = [(places[node], n) for n, node in enumerate(nodes) if not waits[n]]
    heapify(ready)
    made: list[Node] = []
    while ready:
        _, number = heappop(ready)
        made.append(nodes[number])
        for reader in readers[number]:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, (places[nodes[reader]], reader))
    return tuple(made)
