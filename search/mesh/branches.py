"""Branches of a graph: operators that lie between the same others and depend on each other in
nothing, so that they may run side by side on different devices.

Any graph is a row of operators through which all paths go and of what lies between two of them.
What lies between may fall into several components: these are branches, and each of them is looked
at in the same way (parallel splits; Unity, section 5.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pcg.graph import Graph, Node

Branch = tuple[Node, ...]
"""Operators, in order."""
Fork = tuple[Branch, ...]
"""Branches that depend on each other in nothing; two at least."""


def forks(graph: Graph) -> list[Fork]:
    """All groups of branches, those that lie within a branch after it."""
    nodes = [node for node in graph.nodes if not node.is_leaf]
    return list(_Ordered.of(nodes).forks(range(len(nodes))))


def pieces(fork: Fork, every: Iterable[Fork]) -> Fork:
    """The innermost branches within some branches: of a row of concats, say, all that is joined.
    ``every``: all groups of branches of the graph."""
    left = [set(branch) for branch in fork]
    found: list[Branch] = []
    for inner in every:
        for branch in inner if inner != fork else ():
            for rest in left:
                if rest.issuperset(branch):
                    found.append(branch)
    inside = [b for b in found if not any(set(b) > set(other) for other in found)]
    alone = [b for b in fork if not any(set(b) >= set(other) for other in inside)]
    return (*alone, *inside)


@dataclass(frozen=True)
class _Ordered:
    """Operators by number, each with those that it depends on and those that depend on it, as bits
    of a number."""

    nodes: Sequence[Node]
    number: Mapping[Node, int]
    before: Sequence[int]
    after: Sequence[int]

    @staticmethod
    def of(nodes: Sequence[Node]) -> _Ordered:
        number = {node: i for i, node in enumerate(nodes)}
        before, after = [0] * len(nodes), [0] * len(nodes)
        for i, node in enumerate(nodes):
            for value in node.inputs:
                source = number.get(value.node)
                if source is not None:
                    before[i] |= before[source] | 1 << source
        for i in reversed(range(len(nodes))):
            for value in nodes[i].inputs:
                source = number.get(value.node)
                if source is not None:
                    after[source] |= after[i] | 1 << i
        return _Ordered(nodes, number, before, after)

    def forks(self, members: Sequence[int]) -> Iterator[Fork]:
        """Those among some operators, whose numbers ascend."""
        for stretch in self._between(members):
            parts = self._components(stretch)
            if len(parts) > 1:
                yield tuple(tuple(self.nodes[i] for i in part) for part in parts)
            for part in parts:
                if 1 < len(part) < len(members):
                    yield from self.forks(part)

    def _between(self, members: Sequence[int]) -> list[list[int]]:
        """What lies between two operators in a row through which all paths go."""
        every = sum(1 << i for i in members)
        through = sum(
            1 << i for i in members if (self.before[i] | self.after[i] | 1 << i) & every == every
        )
        found: dict[int, list[int]] = {}
        for i in members:
            if not through >> i & 1:
                found.setdefault((self.before[i] & through).bit_count(), []).append(i)
        return list(found.values())

    def _components(self, members: Sequence[int]) -> list[list[int]]:
        """Operators that one reads from the other, however indirectly, each set of them."""
        found: list[tuple[int, list[int]]] = []
        for i in members:
            related = self.before[i] | 1 << i
            touched = [part for part in found if part[0] & related]
            found = [part for part in found if not part[0] & related]
            own = sum((part[0] for part in touched), 1 << i)
            found.append((own, sorted([i, *(j for part in touched for j in part[1])])))
        return sorted(part for _, part in found)
