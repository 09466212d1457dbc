"""Blocks of a model that repeat, and the model with fewer of them.

Problem: a search over a deep model takes time in proportion to its depth, yet nearly all of its
blocks are planned alike.

Method: take the operators of a graph in order. Two operators that are ``length`` places apart are
alike if they do the same and read alike operands. Operands are alike if they too are ``length``
places apart, or are one operator before all blocks, or are leaves of one kind. The longest run of
operators that are alike makes the blocks. Some blocks in the middle are then left out: the
operators that read one of these read the block before instead. This block stands for all that were
left out. ``times`` says how often each operator counts. ``stand_ins`` finds the operator that
stands for each operator of the whole graph.

Complexity: the number of operators and operands, for each of a few lengths. Blocks are exactly
alike, types included. A graph without such blocks is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from pcg.graph.graph import Graph, Leaf, Node, Value
from pcg.placement.schedule import Compute, Schedule
from search.cost.units import AlikeSpans
from search.cost.unroll import ONCE, Repeated
from search.split.colours import MOST_FREE

LENGTHS = 12
"""The number of block lengths that are tried: those that occur most often."""
BLOCKS_KEPT = 8
"""The number of blocks that are kept. The first and the last may be cut differently from all
others. Between them are enough blocks that two in the middle have the same neighbours, even if
rewrites take one more block away at each end."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a graph: ``count`` blocks of ``length`` operators each, beginning at the
    operator ``first``."""

    graph: Graph
    first: int
    length: int
    count: int

    @property
    def operators(self) -> frozenset[Node]:
        """The operators of all blocks."""
        return frozenset(self.graph.operators[self.first :][: self.count * self.length])

    @property
    def _middle(self) -> int:
        """The number of the block that may stand for others."""
        return (self.count - 1) // 2

    @property
    def begin(self) -> int:
        """The place of the first operator of the block that may stand for others."""
        return self.first + self._middle * self.length

    def crossing(self, steps: Schedule) -> frozenset[Node]:
        """The operators of a schedule of the graph that another block reads. Recomputation is to be
        the same in all blocks, so it begins anew in each."""
        computed = [step.node for step in steps.steps if isinstance(step, Compute)]
        place = {node: at for at, node in enumerate(self.graph.operators)}
        last = self.first + self.count * self.length
        return frozenset(
            computed[source]
            for at in range(self.first, last)
            for value in self.graph.operators[at].inputs
            if (source := place.get(value.node)) is not None
            and (source - self.first) // self.length != (at - self.first) // self.length
        )

    def spans(self, steps: Schedule) -> AlikeSpans:
        """The spans of the blocks in a schedule of the graph, so that the same is recomputed in all
        blocks."""
        places = [at for at, step in enumerate(steps.steps) if isinstance(step, Compute)]
        places.append(len(steps.steps))
        starts = [self.first + number * self.length for number in range(self.count + 1)]
        ends = tuple(places[start - 1] for start in starts if start)
        kinds: dict[int, int] = {}
        for start, after in pairwise(starts):
            first = places[start]
            kinds |= {at: at - first for at in range(first, places[after])}
        return AlikeSpans(ends, kinds)

    def colours(self) -> Mapping[Node, int]:
        """A number for each operator. It is equal for operators that are to be cut alike: the
        corresponding ones of all blocks but the first and the last."""
        operators, inner = self.graph.operators, self.first + self.length
        last = self.first + (self.count - 1) * self.length
        return {
            node: inner + (at - inner) % self.length if inner <= at < last else at
            for at, node in enumerate(operators)
        }

    def times(self, more: int) -> Mapping[Node, int]:
        """How often the operators of the middle block count, if it stands for ``more`` others."""
        block = self.graph.operators[self.begin : self.begin + self.length]
        return dict.fromkeys(block, 1 + more)

    def stand_ins(self, whole: Graph, more: int) -> Mapping[Node, Node] | None:
        """For each operator of a graph with ``more`` additional blocks, the operator of this graph
        that stands for it. None if the graphs differ in more than these blocks."""
        operators, whole_operators = self.graph.operators, whole.operators
        start, left_out = self.begin, more * self.length
        if len(whole_operators) != len(operators) + left_out:
            return None
        by_node: dict[Node, Node] = {}
        for i, node in enumerate(whole_operators):
            within = start <= i < start + self.length + left_out
            at = start + (i - start) % self.length if within else i - left_out * (i > start)
            by_node[node] = operators[at]
        alike = all(node.signature == stand_in.signature for node, stand_in in by_node.items())
        return by_node if alike else None

    def without(self, fewer: int) -> Graph | None:
        """The graph without ``fewer`` of its blocks. None if an operator after the blocks reads one
        that would be left out."""
        middle = (self.count - fewer - 1) // 2
        start = self.first + (middle + 1) * self.length
        stop = start + fewer * self.length
        operators = self.graph.operators
        place = {node: i for i, node in enumerate(operators)}
        last = self.first + self.count * self.length
        new: dict[Node, Node] = {}

        def image(at: int, value: Value) -> Value | None:
            source = place.get(value.node)
            if source is None:
                return value
            if stop <= at < last and self.first <= source < at:
                source = source if source >= stop else source - (stop - start)
            elif start <= source < stop:
                return None
            return Value(new[operators[source]], value.port)

        for at, node in enumerate(operators):
            if start <= at < stop:
                continue
            inputs = tuple(image(at, value) for value in node.inputs)
            if any(value is None for value in inputs):
                return None
            new[node] = Node(node.call, tuple(value for value in inputs if value is not None))
        if any(start <= place.get(value.node, -1) < stop for value in self.graph.outputs):
            return None
        ends = (Value(new.get(v.node, v.node), v.port) for v in self.graph.outputs)
        return Graph(tuple(ends))


@dataclass(frozen=True)
class Folded:
    """A graph that stands for one with ``more`` additional blocks."""

    graph: Graph
    more: int


def folded(graph: Graph) -> Folded | None:
    """A deep graph, reduced to as few blocks as show how the whole is planned. None if the graph is
    not deep or has no blocks."""
    if len(graph.operators) <= MOST_FREE:
        return None
    blocks = blocks_of(graph)
    if blocks is None:
        return None
    fewer = blocks.count - BLOCKS_KEPT
    less = blocks.without(fewer) if fewer > 0 else None
    if less is None:
        return None
    folded_graph, short = Folded(less, fewer), blocks_of(less)
    is_same = short is not None and short.stand_ins(graph, fewer) is not None
    return folded_graph if is_same else None


def repeated(graph: Graph, more: int) -> Repeated:
    """How often the middle block of a graph's schedule counts, if the whole graph has ``more``
    additional blocks."""
    blocks = blocks_of(graph) if more else None
    return ONCE if blocks is None else Repeated(blocks.begin, blocks.length, more)


@lru_cache(maxsize=64)
def blocks_of(graph: Graph) -> Blocks | None:
    """The blocks of a graph that together hold the most operators; None if nothing repeats."""
    table = _OperatorTable.of(graph)
    candidates = [table.blocks(length) for length in table.lengths()]
    best = max(candidates, key=lambda blocks: blocks.length * blocks.count, default=None)
    return None if best is None or best.count < 2 else best


@dataclass(frozen=True, eq=False)
class _OperatorTable:
    """The operators of a graph by number. ``kinds``: the signature of each; ``reads``: its
    operands, each as the number and port of an operator, or as a leaf."""

    graph: Graph
    kinds: Sequence[Hashable]
    reads: Sequence[Sequence[tuple[int, int] | Node]]

    @staticmethod
    def of(graph: Graph) -> _OperatorTable:
        place = {node: i for i, node in enumerate(graph.operators)}
        kinds = [node.signature for node in graph.operators]
        reads = [
            [v.node if v.node.is_leaf else (place[v.node], v.port) for v in node.inputs]
            for node in graph.operators
        ]
        return _OperatorTable(graph, kinds, reads)

    def lengths(self) -> list[int]:
        """The most common distances between an operator and the next of the same kind,
        ascending."""
        last: dict[Hashable, int] = {}
        apart: Counter[int] = Counter()
        for i, kind in enumerate(self.kinds):
            if kind in last:
                apart[i - last[kind]] += 1
            last[kind] = i
        # A kind that occurs once in a block shows the length of the block. Shorter distances occur
        # where a block has several operators of a kind.
        often = [length for length, _ in apart.most_common(LENGTHS)]
        return sorted(often)

    def blocks(self, length: int) -> Blocks:
        """The longest run of blocks of a given length."""
        best = (0, 0)
        start = 0
        for i in range(len(self.kinds) - length + 1):
            if i + length < len(self.kinds) and self._alike(i, i + length, start):
                continue
            best = max(best, (i - start, -start))
            start = i + 1
        run, first = best[0], -best[1]
        return Blocks(self.graph, first, length, 1 + run // length if run else 0)

    def _alike(self, left: int, right: int, first: int) -> bool:
        """Whether two operators are alike, in a run of blocks that begins at ``first``."""
        if self.kinds[left] != self.kinds[right]:
            return False
        apart = right - left
        for a, b in zip(self.reads[left], self.reads[right], strict=True):
            if isinstance(a, Node) or isinstance(b, Node):
                if not isinstance(a, Node) or not isinstance(b, Node) or _leaf(a) != _leaf(b):
                    return False
            elif b != (a[0] + apart, a[1]) and (a != b or a[0] >= first):
                return False
        return True


def _leaf(node: Node) -> Hashable:
    call = node.call
    assert isinstance(call, Leaf)
    return call.kind, call.type, call.least, call.below, call.share
