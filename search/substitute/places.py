"""Rewrites at many places of a graph at once, as steps of rules of the library.

A *group* is a rewrite together with the places at which it can be made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pcg.graph.graph import Graph, Node, Value, rebuild, topological
from search.cost.derivation import Applied, Derivation, Scribe
from search.substitute.algebra import Algebra
from substitutions.rules.match import build

Rewritten = tuple[Graph, Derivation]
Steps = tuple[Applied, ...]


class GroupKey(NamedTuple):
    """The identity of a group. ``look``: the hash of what its places look like; ``number``: of the
    rewrite among those at such a place; ``rules``: the names of its rules, in order."""

    look: object
    number: int
    rules: tuple[str, ...]


def rewrites_at(algebra: Algebra, node: Node, graph: Graph) -> Iterator[Steps]:
    """The rewrites at an operator, each as its steps."""
    for applied in algebra.applications(node, graph):
        yield (applied,)
    for opening in algebra.opened(node):
        opened = graph.replace(opening.replaced)
        (image,) = rebuild((node.value(),), opening.replaced)
        for applied in algebra.applications(image.node, opened):
            if any(value in opening.made[0].node.inputs for value in reads(applied)):
                yield opening, applied
    yield from algebra.reduced.opened(node)


def made_everywhere(
    algebra: Algebra,
    graph: Graph,
    derivation: Derivation,
    groups: Sequence[tuple[GroupKey, Sequence[Node]]],
) -> Rewritten:
    """Make rewrites at all places of their groups. For several groups, or one rule: at the places
    that have no operator in common. For a rewrite by several rules: at each place that still looks
    as it did."""
    scribe = Scribe.after(derivation)
    (key, places), *others = groups
    ruled = [(key.rules[0], places) for key, places in groups]
    apart = _apart(algebra, graph, ruled) if others or len(key.rules) == 1 else []
    if others or apart:
        return _at_once(graph, scribe, apart)
    names = {node: scribe.ids[node.value()] for node in places}
    for node in places:
        known = {scribe.ids[n.value()]: n for n in graph.nodes}
        image = known.get(names[node])
        if image is None:
            continue
        for steps in rewrites_at(algebra, image, graph):
            if tuple(step.rule.name for step in steps) == key.rules:
                for step in steps:
                    graph = scribe.follow(graph, step)
                break
    return graph, scribe.derivation


def _apart(
    algebra: Algebra, graph: Graph, ruled: Sequence[tuple[str, Sequence[Node]]]
) -> list[Applied]:
    """The applications of rules at places that have no operator in common."""
    taken: set[Node] = set()
    apart: list[Applied] = []
    for rule, node in ((rule, node) for rule, places in ruled for node in places):
        candidates = algebra.applications(node, graph)
        applied = next((candidate for candidate in candidates if candidate.rule.name == rule), None)
        if applied is None:
            continue
        inside = _inside(applied)
        if taken.isdisjoint(inside):
            taken |= inside
            apart.append(applied)
    return apart


def _at_once(graph: Graph, scribe: Scribe, places: Sequence[Applied]) -> Rewritten:
    """Apply rules at places that have no operator in common, in one pass. Each place comes after
    all that it reads."""
    made_by = {value: applied for applied in places for value in applied.match.outputs}
    new: dict[Value, Value] = {}
    pending = list(reversed(graph.outputs))
    while pending:
        value = pending[-1]
        applied = made_by.get(value)
        read = value.node.inputs if applied is None else tuple(applied.match.values.values())
        waiting = [] if value in new else [operand for operand in read if operand not in new]
        pending += reversed(waiting)
        if waiting:
            continue
        pending.pop()
        if value in new:
            continue
        if applied is None:
            images = _images(value.node, new)
            scribe.rename(images)
            new |= {old: image for old, image in images.items() if old not in made_by}
            continue
        old = applied.match.outputs
        outputs = rebuild(old, {operand: new[operand] for operand in read})
        scribe.rename(dict(zip(old, outputs, strict=True)))
        values = {name: new[operand] for name, operand in applied.match.values.items()}
        match = replace(applied.match, values=values, outputs=outputs)
        made = build(applied.rule, match, {})
        assert made is not None, "types are what they were"
        scribe.write(replace(applied, match=match, made=made))
        new |= zip(old, made, strict=True)
    return Graph(tuple(new[value] for value in graph.outputs)), scribe.derivation


def _images(node: Node, new: Mapping[Value, Value]) -> dict[Value, Value]:
    """The outputs of an operator, each with its image, in which operands are replaced."""
    inputs = tuple(new[value] for value in node.inputs)
    same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
    made = node if same else Node(node.call, inputs)
    return dict(zip(node.outputs, made.outputs, strict=True))


def _inside(applied: Applied) -> set[Node]:
    """The operators that a rule replaces."""
    stop = set(applied.match.values.values())
    replaced = topological((value.node for value in applied.match.outputs), stop)
    return {node for node in replaced if not node.is_leaf}


def reads(applied: Applied) -> set[Value]:
    return set(applied.match.values.values())
