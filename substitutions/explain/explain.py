"""Derives an equality of two graphs from a library, in a few steps from one graph to the other.

Problem: which rules lead from one graph to another? A step applies a rule of the library, in either
direction, at any values. A value that is used twice is replaced once, since graphs share values.
Method: breadth-first search from both graphs until they meet, at a choice of sizes at which nothing
is equal by accident (``explain.sizes``). The steps are replayed at a second, independent choice of
sizes, and count only if they lead from one side to the other there too.
Complexity: at most ``MAX_GRAPHS`` graphs from each end.
Exact: a derivation is valid. There may be one that is not found. Inputs and symbols that a
direction of a rule leaves open are chosen among the values and sizes of the two sides. A step that
leaves some open, or that applies to any value, creates only operators of the two sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType

from pcg.errors import OperatorError
from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.graph.pairs import Outputs, calls, ports, remade
from pcg.language.poly import Poly
from pcg.memo import Answers
from pcg.types.operator import Attribute, Call
from substitutions.explain.rewriting import (
    Pool,
    RewriteDirection,
    at,
    directions,
    joint_replacements,
)
from substitutions.explain.sizes import NumberNames, TypedPair, typed_pairs
from substitutions.rules.rule import Rule
from verifier.trusted.errors import Undecided, Unsolvable
from verifier.trusted.sizes.sizes import SizeEquation

MAX_STEPS = 3
MAX_GRAPHS = 8_000
"""The most graphs that are visited from each end."""


@dataclass(frozen=True)
class DerivationStep:
    """An application of a rule, from left to right (``forward``) or back, and the graph after."""

    rule: Rule
    forward: bool
    graph: Graph


@dataclass(frozen=True)
class RuleDerivation:
    """Steps from one graph to another; none if both are the same graph. The graphs have concrete
    sizes; ``names`` has the symbols of the numbers in them."""

    start: Graph
    steps: tuple[DerivationStep, ...]
    names: NumberNames


@dataclass(frozen=True)
class Explanation:
    """The result of a search. ``reached``: the numbers of graphs that were visited from each end.
    ``problem``: why there is no derivation; empty if there is one."""

    derivation: RuleDerivation | None
    reached: tuple[int, int] = (0, 0)
    problem: str = ""


class Explainer:
    """Searches for derivations by the rules of a library. ``equal``: the equations between sizes
    under which a rule is proved, by its name."""

    def __init__(
        self,
        rules: Iterable[Rule],
        equal: Mapping[str, tuple[SizeEquation, ...]] = MappingProxyType({}),
    ) -> None:
        self._all = _DirectionIndex(d for r in rules for d in directions(r, equal.get(r.name, ())))
        self._computing = _DirectionIndex(
            d for d in self._all.all if not _is_parallel((*d.left, *d.right))
        )

    def attempt(
        self,
        left: Sequence[Value],
        right: Sequence[Value],
        equal: Sequence[SizeEquation] = (),
        max_steps: int = MAX_STEPS,
    ) -> Explanation:
        """Search for a derivation of ``right`` from ``left`` with at most ``max_steps`` steps."""
        try:
            pairs = typed_pairs(left, right, equal)
        except (OperatorError, Undecided, Unsolvable) as error:
            return Explanation(None, problem=str(error))
        if not pairs:
            return Explanation(None, problem="no sizes were found at which both sides have a type")
        # A pair without parallel operators needs no rules about them: each step would also hold
        # with the parallel operators left out.
        book = self._all if _is_parallel((*left, *right)) else self._computing
        search = _Search(book, pairs[0], max_steps)
        failed = False
        for forth, back in search.meetings():
            if all(_replays(forth, back, pair) for pair in pairs[1:]):
                derivation = RuleDerivation(pairs[0].left, _steps(forth, back), pairs[0].names)
                return Explanation(derivation, search.reached)
            failed = True
        problem = f"no derivation of at most {max_steps} steps was found"
        if failed:
            problem += "; some hold at one choice of sizes only"
        return Explanation(None, search.reached, problem)


def _is_parallel(values: Sequence[Value]) -> bool:
    return any(call.operator.parallel is not None for call in calls(Graph(tuple(values))))


class _DirectionIndex:
    """Directions of rules, by the operator at the root of their left side."""

    def __init__(self, directions: Iterable[RewriteDirection]) -> None:
        self.all = tuple(directions)
        self._single: dict[tuple[str, bool], list[RewriteDirection]] = defaultdict(list)
        self._several: dict[bool, list[RewriteDirection]] = defaultdict(list)
        for direction in self.all:
            several = len(direction.left) > 1
            key = (direction.root, direction.grows)
            (self._several[direction.grows] if several else self._single[key]).append(direction)

    def at(self, value: Value, *, grow: bool) -> Iterator[RewriteDirection]:
        """Yield the directions that may apply at a value, either those that grow or the others."""
        roots = ("",) if value.node.is_leaf else (value.node.name, "")
        for root in roots:
            yield from self._single.get((root, grow), ())

    def several(self, *, grow: bool) -> Sequence[RewriteDirection]:
        """The directions with several outputs."""
        return self._several.get(grow, ())


@dataclass
class _Rewriter:
    """Finds the graphs one step away from a graph. The images of a value are cached.

    Steps that grow create only operators in ``operators``.
    """

    book: _DirectionIndex
    pool: Pool
    operators: frozenset[str]

    def __post_init__(self) -> None:
        self._images = Answers(self._images_of)

    @staticmethod
    def around(book: _DirectionIndex, pair: TypedPair) -> _Rewriter:
        """A rewriter that chooses open inputs and symbols from the two sides of a pair."""
        nodes = (*pair.left.nodes, *pair.right.nodes)
        operators = frozenset(node.name for node in nodes if not node.is_leaf)
        return _Rewriter(book, Pool.of(pair.left, pair.right), operators)

    def next(self, graph: Graph, *, grow: bool) -> Iterator[tuple[RewriteDirection, Graph]]:
        """Yield the graphs after one step, either of a direction that grows or of another."""
        for node in graph.nodes:
            for value in ports(node):
                for direction, image in self._images[value, grow]:
                    yield direction, graph.replace({value: image})
        for direction in filter(self._allowed, self.book.several(grow=grow)):
            for images in joint_replacements(direction, graph, self.pool):
                yield direction, graph.replace(images)

    def _images_of(self, asked: tuple[Value, bool]) -> tuple[tuple[RewriteDirection, Value], ...]:
        value, grow = asked
        return tuple(
            (direction, image)
            for direction in filter(self._allowed, self.book.at(value, grow=grow))
            for image in at(direction, value, self.pool)
        )

    def _allowed(self, direction: RewriteDirection) -> bool:
        return not direction.grows or direction.makes <= self.operators


@dataclass(frozen=True)
class _ReachedGraph:
    """A graph with its last step: the graph before, and the direction applied to that."""

    graph: Graph
    depth: int
    before: _ReachedGraph | None = None
    direction: RewriteDirection | None = None


class _Search:
    """A breadth-first search from both ends."""

    def __init__(self, book: _DirectionIndex, pair: TypedPair, max_steps: int) -> None:
        self._max_steps = max_steps
        self._rewriter = _Rewriter.around(book, pair)
        self._starts = (_ReachedGraph(pair.left, 0), _ReachedGraph(pair.right, 0))
        self._seen = tuple({start.graph.digest: start} for start in self._starts)

    @property
    def reached(self) -> tuple[int, int]:
        return len(self._seen[0]), len(self._seen[1])

    def meetings(self) -> Iterator[tuple[_ReachedGraph, _ReachedGraph]]:
        """Yield graphs that are reached from both ends, as (from the left, from the right).

        Steps that do not grow are tried first, since there are few of them. Then a growing step is
        tried as the first step from each end. A growing step elsewhere is, read from the other end,
        a step that does not grow.
        """
        left, right = self._starts
        if left.graph.digest == right.graph.digest:
            yield left, right
            return
        for grow in (False, True):
            layers: list[list[_ReachedGraph]] = [[left], [right]]
            for depth in range(1, max(self._max_steps, 2)):
                for end in (0, 1):
                    layers[end], old = [], layers[end]
                    for new in self._deeper(end, old, grow=grow and depth == 1):
                        layers[end].append(new)
                        other = self._seen[1 - end].get(new.graph.digest)
                        if other is not None and depth + other.depth <= self._max_steps:
                            yield (new, other) if end == 0 else (other, new)

    def _deeper(
        self, end: int, layer: Sequence[_ReachedGraph], *, grow: bool
    ) -> Iterator[_ReachedGraph]:
        """Yield the graphs one step further from an end that have not been reached from it."""
        seen = self._seen[end]
        for old in layer:
            for direction, graph in self._rewriter.next(old.graph, grow=grow):
                if len(seen) >= MAX_GRAPHS:
                    return
                if graph.digest not in seen:
                    new = _ReachedGraph(graph, old.depth + 1, old, direction)
                    seen[graph.digest] = new
                    yield new


def _path(end: _ReachedGraph) -> tuple[tuple[RewriteDirection, Graph], ...]:
    """The steps to a graph, each with the graph after it."""
    if end.before is None or end.direction is None:
        return ()
    return (*_path(end.before), (end.direction, end.graph))


def _steps(forth: _ReachedGraph, back: _ReachedGraph) -> tuple[DerivationStep, ...]:
    """The steps from the left side to the graph where both ways meet, and on to the right side."""
    steps = [DerivationStep(d.rule, d.forward, graph) for d, graph in _path(forth)]
    while back.before is not None and back.direction is not None:
        steps.append(
            DerivationStep(back.direction.rule, not back.direction.forward, back.before.graph)
        )
        back = back.before
    return tuple(steps)


def _replays(forth: _ReachedGraph, back: _ReachedGraph, pair: TypedPair) -> bool:
    """Whether the same steps from both sides meet at the sizes of another pair too."""
    ends = [_replayed(_path(w), s, pair) for w, s in ((forth, pair.left), (back, pair.right))]
    return not ends[0].isdisjoint(ends[1])


def _replayed(
    way: Sequence[tuple[RewriteDirection, Graph]], start: Graph, pair: TypedPair
) -> set[str]:
    """The digests of the graphs that the same steps from another graph lead to. Graphs that differ
    only in sizes have the same skeleton."""
    graphs = {start.digest: start}
    for direction, wanted in way:
        rewriter, shape = _Rewriter.around(_DirectionIndex([direction]), pair), skeleton(wanted)
        steps = (s for g in graphs.values() for s in rewriter.next(g, grow=direction.grows))
        graphs = {new.digest: new for _, new in steps if skeleton(new) == shape}
    return set(graphs)


def skeleton(graph: Graph) -> tuple[str, ...]:
    """Hashes of the outputs that ignore sizes, degrees and reals, and the order of commuting
    operands."""
    made: dict[Node, str] = {}
    for node in graph.nodes:
        if isinstance(node.call, Leaf):
            made[node] = node.call.name
            continue
        parts = [f"{made[v.node]}.{v.port}" for v in node.inputs]
        if node.call.operator.commutative:
            parts.sort()
        parts += [f"@{position}" for position in node.call.positions]
        if isinstance(dim := node.call.values.get("dim"), int):
            parts.append(f"@{dim}")
        text = f"{node.name}({', '.join(parts)})"
        # A hash, since texts of shared parts would grow exponentially.
        made[node] = blake2b(text.encode(), digest_size=12).hexdigest()
    return tuple(f"{made[v.node]}.{v.port}" for v in graph.outputs)


def named(graph: Graph, names: NumberNames) -> tuple[Value, ...]:
    """The outputs for readers: over inputs without types, with symbols for the numbers of sizes."""

    def make(node: Node, inputs: Outputs) -> Node:
        if isinstance(node.call, Leaf):
            return Node(Leaf("tensor", node.call.name, node.call.rank))
        operator = node.call.operator
        kinds = dict.fromkeys((*operator.sizes, *operator.reals), names.numbers)
        kinds["degree"] = names.degrees
        attributes = tuple(
            (name, _named(value, kinds.get(name, {}))) for name, value in node.call.attributes
        )
        return Node(Call(operator, attributes), inputs)

    return remade(graph, make)


def _named(value: Attribute, names: Mapping[int | float, str]) -> Attribute:
    return value if isinstance(value, Poly) or value not in names else Poly.of(names[value])
