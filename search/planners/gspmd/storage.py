"""Weights that are stored as their sharding says, and gathered where an operator needs more.

An operator that cuts the batch along a named axis along which a weight is sharded reads all of that
weight: it is kept in parts and gathered in each step, as weights of the dense transformer of GSPMD,
section 5.1, are. The library's rule that a tensor is the combine of its parts leads there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from pcg.graph.graph import Graph, Value, rebuild
from search.cost.derivation import Applied, Scribe, in_both_directions
from search.map.building import Builder
from search.map.choose.choosing import Choice
from search.map.rules.fully_sharded import PlacedGraph, is_parting
from search.planners.gspmd.annotations import NamedMesh
from search.planners.gspmd.propagation import TensorSharding
from substitutions.rules.match import build, matches_at
from substitutions.rules.rule import Rule

Parts = Sequence[tuple[int, int]]
"""Dimensions of a weight and into how many parts each goes, ascending."""


def stored_parts(sharding: TensorSharding, mesh: NamedMesh) -> Parts:
    """The parts of a weight that is sharded."""
    return [
        (dim, prod(mesh.sizes[axis] for axis in sharding if sharding[axis] == dim))
        for dim in sorted(set(sharding.values()))
    ]


def lies_as_stated(sharding: TensorSharding, mesh: NamedMesh) -> bool:
    """Whether parts that are stored lie on the devices that the mesh says: devices next to each
    other hold those next to each other in the last dimension. So not where an outer axis shards a
    later dimension than an inner one, or outer axes shard one and the innermost do not."""
    every = [axis for axis, size in enumerate(mesh.sizes) if size > 1]
    used = [axis for axis in every if axis in sharding]
    dims = [sharding[axis] for axis in used]
    return dims == sorted(dims) and used == every[len(every) - len(used) :]


@dataclass(frozen=True)
class StoringBuilder(Builder):
    """Cuts operators by their strategies, and keeps weights in parts. ``stored``: by name."""

    stored: Mapping[str, Parts] = field(default_factory=dict[str, Parts])

    def _sharded(self, placed: PlacedGraph, choice: Choice, scribe: Scribe | None) -> PlacedGraph:
        leaves = [leaf for leaf in placed.graph.leaves if leaf.leaf.name in self.stored]
        kept = {leaf.value(): list(self.stored[leaf.leaf.name]) for leaf in leaves}
        while kept:
            placed, kept = self._parted(placed, kept, scribe)
        return placed

    def _parted(
        self, placed: PlacedGraph, kept: Mapping[Value, Parts], scribe: Scribe | None
    ) -> tuple[PlacedGraph, dict[Value, Parts]]:
        """Values in parts along the first of their dimensions, and what is left to do with these
        parts."""
        replaced: dict[Value, Value] = {}
        left: dict[Value, Parts] = {}
        for value, ((dim, degree), *others) in kept.items():
            applied = _along(self.spaces.cuts.rules, value, dim, degree)
            if applied is None:
                continue
            if scribe is not None:
                scribe.write(applied)
            replaced.update(applied.replaced)
            if others:
                left[applied.made[0].node.inputs[0]] = others
        values = [v for node in placed.graph.nodes for v in node.outputs if v not in replaced]
        images = dict(zip(values, rebuild(tuple(values), replaced), strict=True))
        if scribe is not None:
            scribe.rename(images)
        views = {images[node.value()].node: view for node, view in placed.views.items()}
        return PlacedGraph(placed.graph.replace(replaced), views), left


def _along(rules: Iterable[Rule], value: Value, dim: int, degree: int) -> Applied | None:
    """A value as the combine of so many parts along a dimension."""
    graph = Graph((value,))
    for rule in filter(is_parting, in_both_directions(rules)):
        match = next(matches_at(rule, value.node, graph), None)
        if match is None:
            continue
        free = dict.fromkeys(rule.free_symbols, degree)
        made = build(rule, match, free)
        if made is not None and made[0].node.operator_call.integer("dim") == dim:
            return Applied(rule, match, free, made)
    return None
