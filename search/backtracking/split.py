"""Splitting a graph at post-dominators where the fewest rules cross (Unity, section 5.3).

A cut is a value through which everything before it reaches everything after it. A part between two
cuts is searched with the crossing tensors in every useful partitioning; a crossing tensor is a
``tensor`` leaf of the part after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from pcg.graph.graph import Graph, Leaf, Node, Value, rebuild
from search.substitute.applications import Option

Span = frozenset[Node]
"""The operators that a rule matches."""
CROSSING = "crossing"
"""The name of the leaf that stands for the tensor before a part."""


@dataclass(frozen=True)
class GraphPart:
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


def parts(graph: Graph, size: int, spans: Sequence[Span] = ()) -> list[GraphPart]:
    """Parts of ``size`` operators and less than twice as many where that can be, the last perhaps
    smaller, cut where the fewest of the rules that match cross. ``spans``: what these match."""
    chosen: list[Value] = []
    left = cuts(graph)
    while left:
        last = chosen[-1] if chosen else None
        sized = [(GraphPart(last, value, ()).operators, value) for value in left]
        near = [value for operators, value in sized if size <= operators < 2 * size]
        far = [value for operators, value in sized if operators >= size]
        if not far:
            break
        best = min(near, key=lambda value: rules_across(value, spans)) if near else far[0]
        chosen.append(best)
        left = left[left.index(best) + 1 :]
    if chosen and GraphPart(chosen[-1], None, tuple(enumerate(graph.outputs))).operators < 1:
        chosen.pop()
    ends = [None, *chosen, None]
    inside = [_inside(value) for value in chosen]
    result: list[GraphPart] = []
    for i, (first, last) in enumerate(pairwise(ends)):
        outputs = tuple(
            (position, value)
            for position, value in enumerate(graph.outputs)
            if _part_of(value, inside) == i
        )
        result.append(GraphPart(first, last, outputs))
    return result


def rules_across(value: Value, spans: Sequence[Span]) -> int:
    """How many rules that match are lost by a cut: those with operators on both sides."""
    inside = _inside(value)
    return sum(bool(span & inside) and not span <= inside for span in spans)


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
        new = replace(leaf, name=names[leaf.name])
        values[node.value()] = Value(Node(new))
    return graph.replace(values)
