"""Derivations: the rule applications that led to a graph, in a form that an audit can follow.

A step refers to its values by ids that do not change (``pcg.plan.derivation.Application``). So
following a step takes time in proportion to the size of its rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence
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

    @property
    def matched(self) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """The values that match the outputs of the rule's left side, and its inputs."""
        inputs = tuple(self.match.values[name] for name, _ in self.rule.inputs)
        return tuple(self.match.outputs), inputs


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
        number = len(self.steps)
        at, inputs = (tuple(self.ids[v] for v in values) for values in applied.matched)
        self.steps.append(in_derivation(applied, at, inputs))
        for value, operator in created(applied):
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


def in_derivation(applied: Applied, at: tuple[str, ...], inputs: tuple[str, ...]) -> Application:
    """An application of a rule as a step of a derivation. ``at`` and ``inputs``: the ids of the
    values that it matches (``Application``)."""
    symbols = {**_numbers(applied.match), **applied.free}
    return Application(_applied(applied.rule), at, inputs, tuple(sorted(symbols.items())))


def created(applied: Applied) -> Iterator[tuple[Value, int]]:
    """The values that an application of a rule makes, each with the number of its operator among
    those of the rule's right side."""
    nodes = _instances(applied.rule, applied.made)
    for number, pattern in enumerate(applied.rule.created):
        for value in nodes[pattern].outputs:
            yield value, number


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
