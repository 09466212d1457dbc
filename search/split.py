"""Splitting a graph at post-dominators (Unity, section 5.3).

A cut is a value through which everything before it reaches everything after it. A part between two
cuts is searched with the crossing tensors in every useful partitioning; a crossing tensor is a
``tensor`` leaf of the part after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from pcg.graph import Graph, Leaf, Node, Value, rebuild
from search.moves import Option

CROSSING = "crossing"
"""The name of the leaf that stands for the tensor before a part."""


@dataclass(frozen=True)
class Part:
    """A piece of a graph between two cuts.

    ``before`` and ``after`` are the values cut at, None at the ends of the graph; ``outputs`` the
    graph's outputs that the part makes, with their positions.
    """

    before: Value | None
    after: Value | None
    outputs: tuple[tuple[int, Value], ...]

    def graph(self, enter: Option | None, leave: Option | None) -> Graph:
        """The part as a graph, with the crossing tensors cut as the options say."""
        return Graph(self.replace(self.ends(leave), enter))

    def ends(self, leave: Option | None) -> tuple[Value, ...]:
        """What the part makes: the graph's outputs, then what crosses."""
        crossing = () if self.after is None or leave is None else (leave.cut(self.after),)
        return (*(value for _, value in self.outputs), *crossing)

    def replace(self, values: tuple[Value, ...], enter: Option | None) -> tuple[Value, ...]:
        """The values with the tensor before the part made a leaf."""
        if self.before is None or enter is None:
            return values
        return rebuild(values, {self.before: enter.join(crossing_leaf(enter))})

    @cached_property
    def operators(self) -> int:
        """How many operators compute in it."""
        stop = set[Node]() if self.before is None else {self.before.node}
        seen: set[Node] = set()
        stack = [v.node for v in self.ends(None)] + ([self.after.node] if self.after else [])
        while stack:
            node = stack.pop()
            if node in seen or node in stop or node.is_leaf:
                continue
            seen.add(node)
            stack += [v.node for v in node.inputs]
        return len(seen)


def crossing_leaf(option: Option) -> Value:
    """The tensor that enters a part, of the type in which it crosses."""
    return Value(Node(Leaf("tensor", CROSSING, option.type.rank, option.type)))


def cuts(graph: Graph) -> list[Value]:
    """The values that all later operators depend on the earlier ones through, in order.

    Quadratic in the number of operators, which is small beside the search.
    """
    operators = [node for node in graph.nodes if not node.is_leaf]
    before: dict[Node, frozenset[Node]] = {}
    for node in operators:
        own = [v.node for v in node.inputs if not v.node.is_leaf]
        before[node] = frozenset(own).union(*(before[n] for n in own))
    found: list[Value] = []
    for node in sorted(operators, key=lambda n: -len(before[n])):
        if found and node not in before[found[-1].node]:
            continue  # a branch that joins later, such as what is done to a target
        inside = before[node] | {node}
        crossing = {
            value
            for user in operators
            if user not in inside
            for value in user.inputs
            if value.node in inside
        }
        if crossing == {node.value()}:
            found.append(node.value())
    return found[::-1]


def parts(graph: Graph, size: int) -> list[Part]:
    """Parts of at least ``size`` operators, the last perhaps smaller."""
    chosen: list[Value] = []
    for value in cuts(graph):
        last = chosen[-1] if chosen else None
        if Part(last, value, ()).operators >= size:
            chosen.append(value)
    if chosen and Part(chosen[-1], None, tuple(enumerate(graph.outputs))).operators < 1:
        chosen.pop()
    ends = [None, *chosen, None]
    inside = [_inside(value) for value in chosen]
    result: list[Part] = []
    for i, (first, last) in enumerate(pairwise(ends)):
        outputs = tuple(
            (position, value)
            for position, value in enumerate(graph.outputs)
            if _part_of(value, inside) == i
        )
        result.append(Part(first, last, outputs))
    return result


def _inside(value: Value) -> frozenset[Node]:
    return frozenset(Graph((value,)).nodes)


def _part_of(value: Value, inside: Sequence[frozenset[Node]]) -> int:
    for i, nodes in enumerate(inside):
        if value.node in nodes:
            return i
    return len(inside)


def shape_key(graph: Graph) -> tuple[str, dict[str, str]]:
    """A hash of a part up to the names of its leaves, and their names in order of use."""
    names = {node.leaf.name: f"leaf{i}" for i, node in enumerate(graph.leaves)}
    return renamed(graph, names).digest, names


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with its leaves renamed."""
    values: dict[Value, Value] = {}
    for node in graph.leaves:
        leaf = node.leaf
        new = Leaf(leaf.kind, names[leaf.name], leaf.rank, leaf.type, leaf.below)
        values[node.value()] = Value(Node(new))
    return graph.replace(values)
