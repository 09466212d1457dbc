"""Applications of the rules: every graph that one rule of the library makes of a graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from pcg.graph.graph import Graph, Leaf, Node, Value, topological
from pcg.graph.pairs import both, side
from pcg.language.poly import Poly
from pcg.placement.schedule import trace
from pcg.types.halo import states_halo
from pcg.types.operator import Call
from pcg.types.parallel_operators import IN_TIME, PLACING
from pcg.types.tensor import ParallelTensor
from search.cost.derivation import Applied
from search.substitute.anchors import Anchors, Root
from substitutions.rules.match import Match, anchor, build, matches_at, rewrite
from substitutions.rules.rule import Rule, operators_in

Allow = Callable[[Node], bool]


def anything(node: Node) -> bool:
    """Allow every cut."""
    return True


@dataclass(frozen=True)
class Option:
    """A way to cut the tensor between two parts of a model: operators before and after it."""

    type: ParallelTensor
    parts: tuple[Call, ...]
    joins: tuple[Call, ...]
    applied: tuple[Applied, ...]

    def cut(self, value: Value) -> Value:
        """The value as it crosses."""
        for call in self.parts:
            value = Value(Node(call, (value,)))
        return value

    def join(self, value: Value) -> Value:
        """The whole again, from the value as it crosses."""
        for call in reversed(self.joins):
            value = Value(Node(call, (value,)))
        return value


class Rewrites:
    """The usable rules of a library in both directions, and the degrees of a machine.

    ``allow`` says which operators, as they are cut, may be made; all, by default.
    """

    def __init__(self, rules: Sequence[Rule], devices: int, allow: Allow = anything) -> None:
        self._allow = allow
        self._degrees = [k for k in range(2, devices + 1) if devices % k == 0]
        self._devices = devices
        self._identities: list[Rule] = []
        computing: dict[Root, list[Rule]] = defaultdict(list)
        shortening: dict[Root, list[Rule]] = defaultdict(list)
        for rule in (way for one in rules for way in (one, one.reversed)):
            if not is_usable(rule):
                continue
            first = rule.left[anchor(rule)].node
            if isinstance(first.call, Leaf):
                if rule.is_resharding and len(rule.left) == 1:
                    self._identities.append(rule)
            elif not rule.is_resharding:
                computing[first.name, first.ranks[0]].append(rule)
            elif operators_in(rule.right) < operators_in(rule.left):
                # Chains of parallel operators are one transfer, however long: rules between them
                # change no cost, and serve to tidy up.
                shortening[first.name, first.ranks[0]].append(rule)
        self._computing, self._shortening = Anchors(computing), Anchors(shortening)

    def applications(self, graph: Graph) -> Iterator[tuple[Graph, Applied]]:
        """Every graph that one rule makes of this one, and what was done."""
        for node in graph.nodes:
            yield from self._apply(self._computing, graph, node)

    def spans(self, graph: Graph) -> list[frozenset[Node]]:
        """The operators that each rule matches, where they are several."""
        spans: list[frozenset[Node]] = []
        for node in graph.nodes:
            for _, match in self._computing.matches(node, graph):
                ends = frozenset(match.values.values())
                inside = topological((value.node for value in match.outputs), ends)
                span = frozenset(one for one in inside if not one.is_leaf)
                if len(span) > 1:
                    spans.append(span)
        return spans

    def _apply(self, anchors: Anchors, graph: Graph, node: Node) -> Iterator[tuple[Graph, Applied]]:
        for rule, match in anchors.matches(node, graph):
            for free in self._choices(rule):
                outputs = build(rule, match, free)
                if outputs is None or outputs == match.outputs:
                    continue
                if not self._fits(outputs, match):
                    continue
                yield rewrite(graph, match, outputs), Applied(rule, match, free, outputs)

    def _fits(self, outputs: tuple[Value, ...], match: Match) -> bool:
        """Whether what a rule made fits the machine and is allowed."""
        made = topological((v.node for v in outputs), frozenset(match.values.values()))
        return all(
            max(t.pieces for t in node.types) <= self._devices
            and (node.is_leaf or node.is_parallel or self._allow(node))
            for node in made
        )

    def _choices(self, rule: Rule) -> Iterator[Mapping[str, int]]:
        symbols = sorted(rule.free_symbols)
        for values in product(self._degrees, repeat=len(symbols)):
            yield dict(zip(symbols, values, strict=True))

    def tidied(self, graph: Graph) -> tuple[Graph, tuple[Applied, ...]]:
        """The graph with chains of parallel operators shortened while a rule does so."""
        steps: list[Applied] = []
        while (shorter := self._shorter(graph)) is not None:
            graph, step = shorter
            steps.append(step)
        return graph, tuple(steps)

    def _shorter(self, graph: Graph) -> tuple[Graph, Applied] | None:
        for node in graph.nodes:
            if node.is_parallel:
                for shorter in self._apply(self._shortening, graph, node):
                    if len(shorter[0].nodes) < len(graph.nodes):
                        return shorter
        return None

    def options(self, value: Value) -> tuple[Option, ...]:
        """The ways to cut a value that the library's rules ``x == join(cut(x))`` give, starting
        with none; each type once."""
        options = {value.type: Option(value.type, (), (), ())}
        frontier = list(options.values())
        while frontier:
            frontier = [
                wider
                for option in frontier
                for wider in self._wider(value, option)
                if options.setdefault(wider.type, wider) is wider
            ]
        return tuple(options.values())

    def _wider(self, value: Value, option: Option) -> Iterator[Option]:
        crossing = option.cut(value)
        graph = Graph((crossing,))
        for rule in self._identities:
            for match in matches_at(rule, crossing.node, graph):
                for free in self._choices(rule):
                    outputs = build(rule, match, free)
                    if outputs is None or outputs == match.outputs:
                        continue
                    joined = outputs[0].node
                    cut = joined.inputs[0]
                    if cut.node.inputs != (crossing,) or cut.type.pieces > self._devices:
                        continue
                    yield Option(
                        cut.type,
                        (*option.parts, cut.node.operator_call),
                        (*option.joins, joined.operator_call),
                        (*option.applied, Applied(rule, match, free, outputs)),
                    )


def is_usable(rule: Rule) -> bool:
    """Whether a direction of a rule can be applied: all that the right side has is determined.
    What takes two steps with other rules is left to these. So are rules about slices in time, which
    are the pipeline planner's, and those about halos."""
    if rule.derived:
        return False
    nodes = both((rule.left, rule.right)).nodes
    calls = [n.operator_call for n in nodes if not n.is_leaf]
    if any(call.name in IN_TIME or states_halo(call) for call in calls):
        return False
    return rule.is_applicable and rule.free_symbols <= _degree_symbols(rule.right)


def _degree_symbols(values: tuple[Value, ...]) -> frozenset[str]:
    """The symbols that stand for degrees of parallel operators."""
    return frozenset(
        symbol
        for node in side(values).nodes
        if isinstance(node.call, Call)
        for name, value in node.call.attributes
        if name == "degree" and isinstance(value, Poly)
        for symbol in value.symbols
    )


class Keys:
    """Numbers graphs by what they do: their operators, with the types of what they read.

    Graphs that differ in the order of a chain of parallel operators only have one number.
    """

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._nodes: dict[Node, int] = {}

    def of(self, graph: Graph) -> int:
        ends = tuple((v.type, self._source(v)) for v in graph.outputs)
        return self._number(("graph", ends))

    def _source(self, value: Value) -> tuple[int, int, object]:
        source, chain = trace(value)
        stored: object = None
        if source.node.is_leaf:
            # How a leaf is stored is part of what a graph does.
            placed = source
            for node in chain:
                if node.name not in PLACING:
                    stored = placed.type
                    break
                placed = node.value()
        return self._node(source.node), source.port, stored

    def _node(self, node: Node) -> int:
        number = self._nodes.get(node)
        if number is None:
            reads = tuple((v.type, self._source(v)) for v in node.inputs)
            number = self._nodes[node] = self._number((node.call, reads))
        return number

    def _number(self, content: object) -> int:
        return self._numbers.setdefault(content, len(self._numbers))
