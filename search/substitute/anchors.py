"""Finds where rules are anchored, once for all operators that look alike to them.

What a rewrite leaves as it is looks as before, and so does what comes after it, but for the few
operators that a rule reaches back: so after each step of a search only these are matched anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pcg.graph.graph import Graph, Node, Value
from substitutions.rules.match import Binding, Match, anchor, anchored, completed
from substitutions.rules.rule import Rule

Root = tuple[str, int]
"""An operator by name, and the rank of its first output."""
NodePort = tuple[int, int]
"""A value: the number of its node in what an operator looks like, and its port."""


@dataclass(frozen=True)
class _Known:
    """What is bound where a rule is anchored, with places for values, which would keep graphs."""

    rule: Rule
    bound: Binding
    places: Mapping[str, NodePort]

    def at(self, nodes: Sequence[Node]) -> Binding:
        """The same where it looks alike."""
        values = {name: nodes[number].value(port) for name, (number, port) in self.places.items()}
        return self.bound._replace(values=values)


@dataclass
class Anchors:
    """Rules, none of which is anchored at an input, by the operators that they start from."""

    rules: Mapping[Root, Sequence[Rule]]
    looked: int = field(init=False, default=0)
    """How many looks of operators there were, for each of which rules were matched once."""

    def __post_init__(self) -> None:
        every = [rule for some in self.rules.values() for rule in some]
        self._depth = max((_depth(rule.left[anchor(rule)]) for rule in every), default=0)
        self._known: dict[Hashable, tuple[_Known, ...]] = {}

    def matches(self, node: Node, graph: Graph) -> Iterator[tuple[Rule, Match]]:
        """Every match of a rule in a graph that is anchored at an operator."""
        rules = self.rules.get((node.name, node.types[0].rank))
        if not rules:
            return
        nodes, inner = surroundings(node, self._depth)
        look = looks(nodes, inner)
        known = self._known.get(look)
        if known is None:
            self.looked += 1
            known = self._known[look] = tuple(_anchored(rules, nodes))
        for one in known:
            for match in completed(one.rule, node, one.at(nodes), graph):
                yield one.rule, match


def surroundings(node: Node, depth: int) -> tuple[tuple[Node, ...], int]:
    """An operator and what it computes from, level by level, ``depth`` levels of operands; and how
    many of these come before the last level."""
    reached = {node: None}
    level = [node]
    inner = 0
    for _ in range(depth):
        inner = len(reached)
        operands = dict.fromkeys(value.node for one in level for value in one.inputs)
        level = [one for one in operands if one not in reached]
        reached.update(dict.fromkeys(level))
    return tuple(reached), inner


def looks(nodes: Sequence[Node], inner: int) -> Hashable:
    """What an operator and its surroundings are to rules: calls, which values are the same, and the
    types of those with which they begin."""
    numbers = {node: number for number, node in enumerate(nodes)}
    return tuple(
        (node.call, tuple((numbers[value.node], value.port) for value in node.inputs))
        if number < inner and not node.is_leaf
        else node.types
        for number, node in enumerate(nodes)
    )


def _anchored(rules: Sequence[Rule], nodes: Sequence[Node]) -> Iterator[_Known]:
    numbers = {node: number for number, node in enumerate(nodes)}
    for rule in rules:
        for bound in anchored(rule, nodes[0]):
            places = {name: (numbers[v.node], v.port) for name, v in bound.values.items()}
            yield _Known(rule, bound._replace(values={}), places)


def _depth(pattern: Value) -> int:
    """How many levels of operands a pattern has."""
    return 0 if pattern.node.is_leaf else 1 + max(map(_depth, pattern.node.inputs), default=0)
