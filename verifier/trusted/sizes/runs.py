"""Finds the axes of a pair of graphs that may stand for any number of axes, and replaces them.

An operator treats all axes of a run (``a...``) alike: it reads each at its own index only. Consider
an axis of a pair that lies in such runs only, on both sides. Any number of axes, even none, could
stand in its place: the equations would have several indices instead of one, and the types several
degrees. A proof with one axis is a proof for every number of axes. For several axes, merged in
row-major order, are one axis (no axes are one of size 1), and operators that keep runs whole
commute with merging.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from pcg.disjoint import DisjointSets
from pcg.graph.graph import Leaf, Node, Value
from pcg.graph.pairs import (
    GraphPair,
    Outputs,
    both,
    halves,
    ports,
    remade,
    symbolic_attributes,
    with_polynomials,
)
from pcg.language.poly import Poly
from pcg.language.template import Declaration
from pcg.types.operator import Call, Operator, run_lengths
from verifier.trusted.sizes.sizes import input_size

ValueDim = tuple[Value, int]
"""A dimension of a value."""
Group = tuple[tuple[str, int], ...]
"""The dimensions of inputs, as (input, dimension), that are the same axis."""
RunAxis = tuple[str, int]
"""An axis of a run: the name of the run, and the place in it."""


def free_runs(left: Sequence[Value], right: Sequence[Value]) -> tuple[Group, ...]:
    """Return the axes of the inputs that may each stand for any number of axes."""
    axes = _axes((tuple(left), tuple(right)))
    return tuple(group for group, _ in axes.free)


def widened(
    left: Sequence[Value], right: Sequence[Value], counts: Mapping[Group, int]
) -> GraphPair:
    """Return the pair with ``counts[group]`` axes in the place of each free axis in ``counts``."""
    axes = _axes((tuple(left), tuple(right)))
    more = {root: counts[group] - 1 for group, root in axes.free if group in counts}
    sizes = axes.moved_sizes(more)

    def make(node: Node, inputs: Outputs) -> Node:
        if isinstance(node.call, Leaf):
            rank = node.call.rank + axes.added(node.value(), node.call.rank, more)
            return Node(Leaf(node.call.kind, node.call.name, rank))
        return Node(with_polynomials(axes.shifted(node, more), sizes), inputs)

    return halves(remade(axes.graph, make))


@cache
def keeps_runs(operator: Operator) -> bool:
    """Whether the equation keeps every run whole: it reads each run where it was declared, and
    never mentions a single index of a run (``i0`` beside ``i...``)."""
    template = operator.template
    declared = {part.name: part for part in (*template.operands, *template.definitions)}
    for part in declared.values():
        tokens = [t for dim in part.dims if not dim.run for t in (*dim.names, *dim.bound)]
        if any(_is_index_of(token, operator.runs) for token in (*tokens, *part.body)):
            return False
        for position, token in enumerate(part.body):
            if token in declared and part.body[position + 1 : position + 2] == ("[",):
                declared_runs = [
                    f"{d.names[0]}..." if d.run else None for d in declared[token].dims
                ]
                if _runs_read(part.body[position + 2 :]) != declared_runs:
                    return False
        if _guards_a_run(part.body):
            return False
    return True


def _is_index_of(token: str, runs: Sequence[str]) -> bool:
    return any(token.startswith(run) and token[len(run) :].isdigit() for run in runs)


def _runs_read(tokens: Sequence[str]) -> list[str | None]:
    """The indices of an access up to its closing bracket: a run's name, or None for another
    index."""
    entries: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in "([") - (token in ")]")
        if depth < 0:
            break
        if token == "," and depth == 0:
            entries.append([])
        else:
            entries[-1].append(token)
    runs = [e[0] if len(e) == 1 and e[0].endswith("...") else None for e in entries]
    return runs if entries != [[]] else []


def _guards_a_run(body: Sequence[str]) -> bool:
    """Whether a maximum over a run has a condition. The condition would belong to the last axis of
    the run only."""
    for position, token in enumerate(body):
        if token == "where":
            start = max(i for i in range(position) if body[i] == "max")
            if any(t.endswith("...") for t in body[start:position]):
                return True
    return False


@dataclass(frozen=True)
class _Part:
    """An operand or output of an operator. ``axes``: for each dimension its axis of a run, or None
    if it is in no run."""

    axes: tuple[RunAxis | None, ...]
    positions: tuple[tuple[str, int], ...]
    """(attribute that is a position, the dimension that it names)."""


def _parts(node: Node) -> tuple[_Part, ...]:
    call = node.operator_call
    moved = call.values.get("dim") if call.operator.parallel else None
    ranks = tuple(value.rank for value in node.inputs)
    return _parts_at(call.operator, call.positions, ranks, moved if isinstance(moved, int) else -1)


@lru_cache(maxsize=1 << 14)
def _parts_at(
    operator: Operator, positions_given: tuple[int, ...], ranks: tuple[int, ...], moved: int
) -> tuple[_Part, ...]:
    """The operands and outputs of an operator at given ranks. ``moved``: the dimension that a
    parallel operator cuts or joins, or -1."""
    lengths = run_lengths(
        operator, ranks, dict(zip(operator.template.positions, positions_given, strict=True))
    )
    parts: list[_Part] = []
    for declared in operator.template.placing:
        axes, positions = _expanded(declared, lengths)
        if not keeps_runs(operator):
            axes = [None for _ in axes]
        if moved >= 0:
            axes = [None if dim == moved else name for dim, name in enumerate(axes)]
            positions.append(("dim", moved))
        parts.append(_Part(tuple(axes), tuple(positions)))
    return tuple(parts)


def _expanded(
    declared: Declaration, lengths: dict[str, int]
) -> tuple[list[RunAxis | None], list[tuple[str, int]]]:
    axes: list[RunAxis | None] = []
    positions: list[tuple[str, int]] = []
    for dim in declared.dims:
        if dim.position is not None:
            positions.append((dim.position, len(axes)))
        if dim.run:
            axes += [(dim.names[0], i) for i in range(lengths[dim.names[0]])]
        else:
            axes.append(None)
    return axes, positions


_Key = tuple[int, int, int]
"""A dimension of a value: (number of its node, port, dimension)."""


class _Axes:
    """The axes of a pair: classes of dimensions that are the same axis, and the dimensions that lie
    in no run."""

    def __init__(self, pair: GraphPair) -> None:
        self.graph = both(pair)
        nodes = self.graph.nodes
        self._numbers = {node: number for number, node in enumerate(nodes)}
        self._same = DisjointSets[_Key]()
        self._fixed: set[_Key] = set()
        self._leaves: list[tuple[Leaf, list[_Key]]] = []
        self._mentioned: set[str] = set()
        """The sizes of inputs that occur in attributes. Such a size is that of one dimension, so
        its axis stays one axis."""
        for node in nodes:
            if isinstance(node.call, Leaf):
                self._leaves.append((node.call, self._keys(node.value(), node.call.rank)))
            else:
                self._visit(node)
        for _, _, value in symbolic_attributes(self.graph):
            self._mentioned |= value.symbols
        for a, b in zip(*pair, strict=True):
            for here, there in zip(self._keys(a, a.rank), self._keys(b, a.rank), strict=True):
                self._same.join(here, there)
        self.free = tuple(self._free())
        """The axes of inputs that lie in runs only, each with the representative of its class."""

    def _keys(self, value: Value, rank: int) -> list[_Key]:
        number = self._numbers[value.node]
        return [(number, value.port, dim) for dim in range(rank)]

    def _visit(self, node: Node) -> None:
        known: dict[RunAxis, _Key] = {}
        for value, part in zip((*node.inputs, *ports(node)), _parts(node), strict=True):
            for key, axis in zip(self._keys(value, len(part.axes)), part.axes, strict=True):
                if axis is None:
                    self._fixed.add(key)
                else:
                    self._same.join(key, known.setdefault(axis, key))

    def _free(self) -> Iterator[tuple[Group, _Key]]:
        fixed = {self._same.root(key) for key in self._fixed}
        groups: dict[_Key, list[tuple[str, int]]] = {}
        for leaf, keys in self._leaves:
            for dim, key in enumerate(keys):
                groups.setdefault(self._same.root(key), []).append((leaf.name, dim))
                if input_size(leaf.name, dim) in self._mentioned:
                    fixed.add(self._same.root(key))
        for root, group in groups.items():
            if root not in fixed:
                yield tuple(group), root

    def added(self, value: Value, before: int, more: Mapping[_Key, int]) -> int:
        """How many axes ``more`` adds to the first ``before`` dimensions of a value."""
        return sum(more.get(self._same.root(key), 0) for key in self._keys(value, before))

    def moved_sizes(self, more: Mapping[_Key, int]) -> dict[str, Poly]:
        """The new symbols of the sizes of inputs' dimensions that move when ``more`` axes are
        added, by their old symbols."""
        moved: dict[str, Poly] = {}
        for leaf, keys in self._leaves:
            added = 0
            for dim, key in enumerate(keys):
                if added:
                    old, new = (input_size(leaf.name, d) for d in (dim, dim + added))
                    moved[old] = Poly.of(new)
                added += more.get(self._same.root(key), 0)
        return moved

    def shifted(self, node: Node, more: Mapping[_Key, int]) -> Call:
        """The call with its positions moved by the axes that are added before them."""
        attributes = dict(node.operator_call.attributes)
        for value, part in zip((*node.inputs, *ports(node)), _parts(node), strict=True):
            for name, dim in part.positions:
                attributes[name] = dim + self.added(value, dim, more)
        return Call(node.operator_call.operator, tuple(attributes.items()))


@lru_cache(maxsize=1 << 10)
def _axes(pair: GraphPair) -> _Axes:
    return _Axes(pair)
