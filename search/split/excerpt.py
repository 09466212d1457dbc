"""Excerpts of a graph: a few operators as a graph of their own, to judge a change to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pcg.graph.graph import Graph, Leaf, Node, Value, rebuild
from pcg.readings.work import gradient_nodes
from search.cost.derivation import Applied


@dataclass(frozen=True)
class Excerpt:
    """Some operators of a graph as a graph of their own.

    ``graph``: its outputs are the values that are read outside or are outputs of the whole graph.
    ``images``: the operators of the excerpt by those of the whole graph. ``ends``: the values of
    the excerpt that are outputs of the whole graph. ``leaves``: the leaves that stand for values of
    other operators.
    """

    graph: Graph
    images: Mapping[Node, Node]
    ends: tuple[Value, ...]
    leaves: Mapping[Value, Value]

    @staticmethod
    def of(graph: Graph, nodes: Collection[Node]) -> Excerpt:
        """The excerpt on some operators of a graph."""
        trained = gradient_nodes(graph)
        leaves = {
            value: _leaf(value, trained=value.node in trained)
            for node in nodes
            for value in node.inputs
            if value.node not in nodes and not value.node.is_leaf
        }
        ordered = tuple(value for node in nodes for value in node.outputs)
        images = dict(zip(ordered, rebuild(ordered, leaves), strict=True))
        ends = frozenset(graph.outputs)
        read = {
            v for n in nodes for user in graph.users[n] if user not in nodes for v in user.inputs
        }
        return Excerpt(
            Graph(tuple(image for value, image in images.items() if value in read | ends)),
            {value.node: image.node for value, image in images.items()},
            tuple(images[value] for value in graph.outputs if value in images),
            leaves,
        )

    def replaced(self, step: Applied) -> dict[Value, Value]:
        """The values that a step replaces, with their replacements, in terms of the excerpt."""
        old, new = step.match.outputs, step.made
        images = rebuild((*old, *new), self.leaves)
        return dict(zip(images[: len(old)], images[len(old) :], strict=True))


def _leaf(value: Value, *, trained: bool) -> Value:
    """A leaf of the same type. It needs a gradient if it is ``trained``."""
    name = f"{value.node.digest}.{value.port}"
    return Node(Leaf("tensor" if trained else "input", name, value.rank, value.type)).value()
