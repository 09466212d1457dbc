"""Branches of a graph: sets of operators that may run side by side, as none depends on another.

In any graph, some operators lie on all paths. The other operators lie between two of these. The
operators between two such may fall into several components. These are branches, and each is
analysed in the same way (parallel splits; Unity, section 5.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from pcg.graph.components import components
from pcg.graph.graph import Graph, Node

Branch = tuple[Node, ...]
"""The operators of a branch, in order."""


@dataclass(frozen=True)
class Fork:
    """Two or more branches that are independent of each other, each with the forks within it."""

    branches: tuple[Branch, ...]
    inside: tuple[tuple[Fork, ...], ...]

    def __iter__(self) -> Iterator[Fork]:
        """Iterate over this fork and all forks within it."""
        yield self
        for inner in (fork for forks in self.inside for fork in forks):
            yield from inner

    @property
    def innermost(self) -> tuple[Branch, ...]:
        """The branches, where a branch with exactly one fork within is replaced by the innermost
        branches of that fork. For a chain of concats, these are all operands that are joined. A
        branch with several forks is kept, as one of these waits for the other."""
        innermost: list[Branch] = []
        for branch, within in zip(self.branches, self.inside, strict=True):
            innermost += within[0].innermost if len(within) == 1 else [branch]
        return tuple(innermost)


def forks(graph: Graph) -> list[Fork]:
    """All forks of a graph. Each is followed by those that lie within its branches."""
    nodes = graph.operators
    outer = _Dependencies.of(nodes).forks(range(len(nodes)))
    return [fork for around in outer for fork in around]


@dataclass(frozen=True)
class _Dependencies:
    """Operators by number. ``before`` and ``after``: for each operator, those that it depends on
    and those that depend on it, as bits of a number; ``beside``: its direct neighbours, in both
    directions."""

    nodes: Sequence[Node]
    before: Sequence[int]
    after: Sequence[int]
    beside: Sequence[AbstractSet[int]]

    @staticmethod
    def of(nodes: Sequence[Node]) -> _Dependencies:
        number = {node: i for i, node in enumerate(nodes)}
        before, after = [0] * len(nodes), [0] * len(nodes)
        beside: list[set[int]] = [set() for _ in nodes]
        for i, node in enumerate(nodes):
            for value in node.inputs:
                source = number.get(value.node)
                if source is not None:
                    before[i] |= before[source] | 1 << source
                    beside[i].add(source)
                    beside[source].add(i)
        for i in reversed(range(len(nodes))):
            for value in nodes[i].inputs:
                source = number.get(value.node)
                if source is not None:
                    after[source] |= after[i] | 1 << i
        return _Dependencies(nodes, before, after, beside)

    def forks(self, members: Sequence[int]) -> Iterator[Fork]:
        """The outermost forks among some operators, whose numbers ascend."""
        for between in self._between(members):
            parts = components(between, self.beside.__getitem__)
            within = (p for p in parts if 1 < len(p) < len(members))
            if len(parts) == 1:
                yield from (fork for part in within for fork in self.forks(part))
                continue
            inside = (tuple(self.forks(p)) if 1 < len(p) < len(members) else () for p in parts)
            branches = (tuple(self.nodes[i] for i in part) for part in parts)
            yield Fork(tuple(branches), tuple(inside))

    def _between(self, members: Sequence[int]) -> list[list[int]]:
        """The operators between each two neighbours on the row of operators that lie on all
        paths."""
        every = sum(1 << i for i in members)
        through = sum(
            1 << i for i in members if (self.before[i] | self.after[i] | 1 << i) & every == every
        )
        between: dict[int, list[int]] = {}
        for i in members:
            if not through >> i & 1:
                between.setdefault((self.before[i] & through).bit_count(), []).append(i)
        return list(between.values())
