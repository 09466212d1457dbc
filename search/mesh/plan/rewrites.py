"""Algebraic rewrites, judged by the strategies that are best after them.

Problem: find rewrites of a graph, by rules of the library, after which its best strategies take
less time. Judging a rewrite after parallelization, not before, is what makes the optimization joint
(Unity, OSDI 2022, sections 2 and 6.4).

Method: greedy descent over groups of rewrites. Places that look alike and are cut alike are one
group, of which one place is tried. The operators near it choose their strategies anew, those
further away keep theirs. Where the place gains, the rewrite is made at all places of the group; it
stays if the whole graph, with all strategies chosen again, is faster.

The gain of a place is an estimate, the gain of the whole is as the sum of ``choosing`` has it. That
no other order of rewrites gains more is not shown.

Some rules want a fully sharded weight where a model has it whole. Such a weight, or a part of it
that an earlier rewrite has made, is *opened* first, by the rule that a tensor is the concat of its
parts, where what it meets is a concat of just these. And what reduces an axis, such as a loss, is
opened where the axis may then be cut (``search.mesh.rules.reduced``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pcg.graph.graph import Graph, Node, Value, rebuild, topological
from search.cost.derivation import Applied, Derivation, Scribe
from search.mesh.choose.blocks import blocks_of
from search.mesh.choose.choosing import Choice, Chooser
from search.mesh.plan.algebra import Algebra
from search.mesh.plan.excerpt import Excerpt
from substitutions.rules.match import build

LEAST_GAIN = 2e-3
"""Of the seconds of a step, what a rewrite has to gain to be made."""
NEAR = 1
"""So many operators away from a rewrite, strategies are chosen anew."""
DEPTH = 3
"""Places look alike where what they compute from looks alike, so many operators deep."""

Rewritten = tuple[Graph, Derivation]
Steps = tuple[Applied, ...]


@dataclass(frozen=True)
class Limits:
    """How far to look for rewrites. ``tries``: how many groups of them are looked at;
    ``is_over``: whether to stop with what is found."""

    tries: int = 1 << 20
    is_over: Callable[[], bool] = lambda: False


@dataclass(frozen=True, eq=False)
class RewrittenGroup:
    """A rewrite that was made at all places of a group: ``choice`` was how all was cut before, and
    ``key`` is by which rules it is made, and what its places look like."""

    choice: Choice
    key: object


@dataclass
class Rewriter:
    """Rewrites graphs for one machine."""

    chooser: Chooser
    algebra: Algebra
    limits: Limits = Limits()
    tried: int = field(init=False, default=0)
    made: list[RewrittenGroup] = field(init=False, default_factory=list[RewrittenGroup])
    """The rewrites that were kept, one after the other."""

    def improved(self, graph: Graph, derivation: Derivation) -> Rewritten | None:
        """The graph with rewrites that make it faster; None if there are none."""
        first = choice = self.chooser.choose(graph)
        refused: set[object] = set()
        while not self._is_over():
            better = self._step(choice, derivation, refused)
            if better is None:
                break
            choice, derivation = better
        return None if choice is first else (choice.graph, derivation)

    def _is_over(self) -> bool:
        return self.tried >= self.limits.tries or self.limits.is_over()

    def _step(
        self, choice: Choice, derivation: Derivation, refused: set[object]
    ) -> tuple[Choice, Derivation] | None:
        """The first group of rewrites, those that promise most first, that the whole gains by."""
        gains: list[tuple[float, int, object, Sequence[Node]]] = []
        times = self.chooser.times(choice.graph)
        groups = sorted(self._groups(choice).items(), key=lambda group: not _reduces(group[1][0]))
        for key, (steps, places) in groups:
            if key in refused or self._is_over():
                continue
            gain = sum(times.get(node, 1) for node in places) * self._gain(choice, steps)
            if gain > LEAST_GAIN * choice.seconds:
                gains.append((-gain, len(gains), key, places))
            else:
                refused.add(key)
        for _, _, key, places in sorted(gains, key=lambda g: g[:2]):
            if self.limits.is_over():
                return None
            refused.add(key)
            graph, after = _everywhere(self.algebra, choice.graph, derivation, key, places)
            if times and blocks_of(graph) is None:
                continue
            again = self.chooser.choose(graph)
            if again.seconds < (1 - LEAST_GAIN) * choice.seconds:
                self.made.append(RewrittenGroup(choice, key))
                return again, after
        return None

    # -- what may be rewritten ----------------------------------------------------------------

    def _groups(self, choice: Choice) -> dict[object, tuple[Steps, list[Node]]]:
        """By rules and what a place looks like, one application and all the places."""
        graph = choice.graph
        looks = _looks(choice)
        alike: dict[object, list[Node]] = defaultdict(list)
        for node in graph.operators:
            alike[looks[node]].append(node)
        groups: dict[object, tuple[Steps, list[Node]]] = {}
        for look, nodes in alike.items():
            for number, steps in enumerate(_at(self.algebra, nodes[0], graph)):
                key = (look, number, tuple(step.rule.name for step in steps))
                groups[key] = (steps, nodes)
        return groups

    @staticmethod
    def everywhere(
        algebra: Algebra, choice: Choice, derivation: Derivation, key: object
    ) -> Rewritten:
        """The graph of a choice with a rewrite made at all places of a group. ``key``: the
        group's."""
        assert isinstance(key, tuple)
        looks = _looks(choice)
        places = [node for node in choice.graph.operators if looks[node] == key[0]]
        return _everywhere(algebra, choice.graph, derivation, key, places)

    # -- what a rewrite gains -----------------------------------------------------------------

    def _gain(self, choice: Choice, steps: Steps) -> float:
        """Seconds that a rewrite saves where operators near it choose anew."""
        self.tried += not _reduces(steps)
        whole = choice.graph
        excerpt = Excerpt.of(whole, _around(whole, _touched(whole, steps), NEAR + 1))
        strategies = {image: choice.strategies[node] for node, image in excerpt.images.items()}
        first = graph = excerpt.graph
        kept = {value: value for node in first.nodes for value in node.outputs}
        ends = excerpt.ends
        for step in steps:
            replaced = excerpt.replaced(step)
            graph, ends = graph.replace(replaced), rebuild(ends, replaced)
            held = [(old, value) for old, value in kept.items() if value not in replaced]
            images = rebuild(tuple(value for _, value in held), replaced)
            kept = {old: image for (old, _), image in zip(held, images, strict=True)}
        before = {old.node: new.node for old, new in kept.items()}
        after = {new: old for old, new in before.items()}
        there = set(graph.nodes)
        gone = {n for n in first.nodes if before.get(n) not in there and not n.is_leaf}
        fresh = {n for n in graph.nodes if n not in after and not n.is_leaf}
        near = _around(first, gone, NEAR) - gone
        near |= {after[n] for n in _around(graph, fresh, NEAR) if n in after} - gone
        ring = _around(first, near | gone, 1) - gone - near
        fixed = {node: strategies[node] for node in ring}
        among = near | gone | ring
        old = self.chooser.choose(first, among=among, fixed=fixed, ends=excerpt.ends)
        fixed = {before[node]: own for node, own in fixed.items()}
        among = {before[node] for node in near | ring} | fresh
        new = self.chooser.choose(graph, among=among, fixed=fixed, ends=ends)
        return old.seconds - new.seconds


def _reduces(steps: Steps) -> bool:
    """Whether they let a reduction be cut along its axis. A graph has few of these, most often in
    its end; they are looked at first, and besides those that there is a limit to."""
    return bool(steps[-1].free)  # the blocks of the axis; other rewrites leave nothing to choose


def _at(algebra: Algebra, node: Node, graph: Graph) -> Iterator[Steps]:
    """The rewrites of what an operator computes."""
    for applied in algebra.applications(node, graph):
        yield (applied,)
    for opening in algebra.opened(node):
        opened = graph.replace(opening.replaced)
        (image,) = rebuild((node.value(),), opening.replaced)
        for applied in algebra.applications(image.node, opened):
            if any(value in opening.made[0].node.inputs for value in _reads(applied)):
                yield opening, applied
    yield from algebra.reduced.opened(node)


def _everywhere(
    algebra: Algebra,
    graph: Graph,
    derivation: Derivation,
    key: object,
    places: Sequence[Node],
) -> tuple[Graph, Derivation]:
    """The graph with a rewrite made at all places that still look as they did."""
    assert isinstance(key, tuple)
    rules = key[2]
    scribe = Scribe.after(derivation)
    apart = _apart(algebra, graph, rules[0], places) if len(rules) == 1 else []
    if apart:
        return _at_once(graph, scribe, apart)
    names = {node: scribe.ids[node.value()] for node in places}
    for node in places:
        known = {scribe.ids[n.value()]: n for n in graph.nodes}
        image = known.get(names[node])
        if image is None:
            continue
        for steps in _at(algebra, image, graph):
            if tuple(step.rule.name for step in steps) == rules:
                for step in steps:
                    graph = scribe.follow(graph, step)
                break
    return graph, scribe.derivation


def _apart(algebra: Algebra, graph: Graph, rule: str, places: Sequence[Node]) -> list[Applied]:
    """What a rule makes of places that have no operator in common."""
    taken: set[Node] = set()
    apart: list[Applied] = []
    for node in places:
        here = algebra.applications(node, graph)
        applied = next((one for one in here if one.rule.name == rule), None)
        if applied is None:
            continue
        inside = _inside(applied)
        if taken.isdisjoint(inside):
            taken |= inside
            apart.append(applied)
    return apart


def _at_once(graph: Graph, scribe: Scribe, places: Sequence[Applied]) -> Rewritten:
    """A graph with what rules make of places that have no operator in common, in one pass: each of
    them after all that it reads."""
    made_by = {value: applied for applied in places for value in applied.match.outputs}
    new: dict[Value, Value] = {}
    pending = list(reversed(graph.outputs))
    while pending:
        value = pending[-1]
        applied = made_by.get(value)
        read = value.node.inputs if applied is None else tuple(applied.match.values.values())
        waiting = [] if value in new else [one for one in read if one not in new]
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
        outputs = rebuild(old, {one: new[one] for one in read})
        scribe.rename(dict(zip(old, outputs, strict=True)))
        values = {name: new[one] for name, one in applied.match.values.items()}
        match = replace(applied.match, values=values, outputs=outputs)
        made = build(applied.rule, match, {})
        assert made is not None, "types are what they were"
        scribe.write(replace(applied, match=match, made=made))
        new |= zip(old, made, strict=True)
    return Graph(tuple(new[value] for value in graph.outputs)), scribe.derivation


def _images(node: Node, new: Mapping[Value, Value]) -> dict[Value, Value]:
    """The outputs of an operator with what it reads replaced."""
    inputs = tuple(new[value] for value in node.inputs)
    same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
    made = node if same else Node(node.call, inputs)
    return dict(zip(node.outputs, made.outputs, strict=True))


def _inside(applied: Applied) -> set[Node]:
    """The operators that a rule replaces, as far as nothing else reads them."""
    stop = set(applied.match.values.values())
    replaced = topological((value.node for value in applied.match.outputs), stop)
    return {node for node in replaced if not node.is_leaf}


def _reads(applied: Applied) -> set[Value]:
    return set(applied.match.values.values())


def _touched(graph: Graph, steps: Steps) -> set[Node]:
    """The operators that steps replace, in part or whole, or that read a weight that is opened."""
    touched: set[Node] = set()
    for step in steps:
        stop = set(step.match.values.values())
        touched.update(topological((v.node for v in step.match.outputs), stop))
        touched.update(u for v in step.match.outputs for u in graph.users.get(v.node, ()))
    return {node for node in touched if node in graph.users and not node.is_leaf}


def _around(graph: Graph, nodes: set[Node], distance: int) -> set[Node]:
    """The operators at most so far from some, in either direction; those among them."""
    near = set(nodes)
    for _ in range(distance):
        near |= {v.node for n in near for v in n.inputs if not v.node.is_leaf} | {
            user for n in near for user in graph.users.get(n, ())
        }
    return near


def _looks(choice: Choice) -> dict[Node, object]:
    """What each operator looks like: itself and what it computes from, a few operators deep, and
    who reads it; and how all of these are cut, for of layers that are alike some may gain by being
    rewritten and others not."""
    graph = choice.graph
    looks: dict[Node, object] = {}
    for node in graph.nodes:
        own = node.leaf.kind if node.is_leaf else node.operator_call
        looks[node] = hash((own, tuple(node.types), choice.strategies.get(node)))
    for _ in range(DEPTH):
        looks = {
            node: hash((looks[node], tuple((looks[v.node], v.port) for v in node.inputs)))
            for node in graph.nodes
        }
    return {
        node: (looks[node], tuple(sorted(hash(looks[user]) for user in graph.users[node])))
        for node in graph.nodes
    }
