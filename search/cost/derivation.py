"""Derivations: the rule applications that led to a graph, in a form that an audit can follow.

A step refers to its values by ids that do not change (``pcg.plan.derivation.Application``). So
following a step takes time in proportion to the size of its rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from dataclasses import dataclass
from functools import lru_cache

from pcg.graph.graph import Graph, Leaf, Node, Value, rebuild
from pcg.language.poly import Poly
from pcg.plan.derivation import Application, AppliedRule, made_id
from pcg.plan.schema import Symbol
from pcg.plan.text import node_names
from substitutions.rules.match import Match
from substitutions.rules.rule import Rule


@dataclass(frozen=True)
class Derivation:
    """The steps that led to a graph, and the ids of the graph's values."""

    steps: tuple[Application, ...]
    ids: Mapping[Value, str]

    @staticmethod
    def start(model: Graph) -> Derivation:
        """The derivation of the graph of a model itself: no steps."""
        names = node_names(model)
        return Derivation(
            (), {node.value(port): name for node in names for port, name in enumerate(names[node])}
        )


def in_both_directions(rules: Iterable[Rule]) -> Iterator[Rule]:
    """Each rule, followed by its reverse."""
    for rule in rules:
        yield rule
        yield rule.reversed


@dataclass(frozen=True)
class Applied:
    """An application of a rule: the match, the values of the rule's free symbols, and the
    result."""

    rule: Rule
    match: Match
    free: Mapping[str, int]
    made: tuple[Value, ...]

    @property
    def replaced(self) -> dict[Value, Value]:
        """The value that replaces each output of the match."""
        return dict(zip(self.match.outputs, self.made, strict=True))


@dataclass(frozen=True)
class Scribe:
    """Writes applications of rules down. ``ids``: those of the values known so far."""

    steps: MutableSequence[Application]
    ids: MutableMapping[Value, str]

    @staticmethod
    def after(derivation: Derivation) -> Scribe:
        """A scribe that continues a derivation."""
        return Scribe(list(derivation.steps), dict(derivation.ids))

    def write(self, applied: Applied) -> None:
        """Note the application of a rule."""
        rule, match = applied.rule, applied.match
        number = len(self.steps)
        self.steps.append(
            Application(
                _applied(rule),
                tuple(self.ids[value] for value in match.outputs),
                tuple(self.ids[match.values[name]] for name, _ in rule.inputs),
                tuple(sorted({**_numbers(match), **applied.free}.items())),
            )
        )
        nodes = _instances(rule, applied.made)
        for operator, node in enumerate(nodes[pattern] for pattern in rule.created):
            for value in node.outputs:
                self.ids[value] = made_id(number, operator, value.port)

    def rename(self, same: Mapping[Value, Value]) -> None:
        """Note that values have changed because an operand, or an operand of that, was replaced."""
        self.ids.update({new: self.ids[old] for old, new in same.items() if old != new})

    def follow(self, graph: Graph, applied: Applied) -> Graph:
        """Note the application of a rule to a graph whose values are all known. Returns the graph
        after it."""
        replaced = applied.replaced
        kept = [v for node in graph.nodes for v in node.outputs if v not in replaced]
        before = [self.ids[value] for value in kept]
        self.write(applied)
        images = zip(before, kept, rebuild(tuple(kept), replaced), strict=True)
        self.ids.update({image: name for name, value, image in images if image != value})
        return graph.replace(replaced)

    @property
    def derivation(self) -> Derivation:
        """The derivation that has been written."""
        return Derivation(tuple(self.steps), self.ids)


def _numbers(match: Match) -> dict[str, Symbol]:
    return {name: value for name, value in match.symbols.items() if not isinstance(value, Poly)}


def _instances(rule: Rule, made: tuple[Value, ...]) -> dict[Node, Node]:
    """For each operator of a rule's right side, the operator of the graph that it has become."""
    instances: dict[Node, Node] = {}
    pending = [(a.node, b.node) for a, b in zip(rule.right, made, strict=True)]
    while pending:
        pattern, node = pending.pop()
        if pattern not in instances and not isinstance(pattern.call, Leaf):
            instances[pattern] = node
            inputs = zip(pattern.inputs, node.inputs, strict=True)
            pending += [(a.node, b.node) for a, b in inputs]
    return instances


@lru_cache(maxsize=1 << 12)
def _applied(rule: Rule) -> AppliedRule:
    form = rule.form
    return AppliedRule(rule.name, form.rule, form.axes, form.operators, form.reversed, rule.text)
