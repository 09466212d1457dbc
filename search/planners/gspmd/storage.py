"""Weights that are stored as they are sharded, and gathered where an operator needs more.

If an operator cuts the batch along a named axis that shards a weight, it reads all of that weight.
The weight is stored in parts and gathered in each step, like the weights of the dense transformer
in GSPMD, section 5.1. This follows by the library's rule that a tensor is the combine of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from pcg.graph.graph import Graph, Value, rebuild
from search.cost.derivation import Applied, Scribe
from search.map.building import Builder
from search.map.choose.choosing import Choice
from search.map.rules.fully_sharded import PlacedGraph, partings
from search.planners.gspmd.annotations import NamedMesh
from search.planners.gspmd.propagation import TensorSharding
from substitutions.rules.concrete.rooted import RootedRules
from substitutions.rules.match import build, matches_at

Parts = Sequence[tuple[int, int]]
"""Dimensions of a weight, ascending, each with the number of parts."""


def stored_parts(sharding: TensorSharding, mesh: NamedMesh) -> Parts:
    """The parts of a weight with a sharding."""
    return [
        (dim, prod(mesh.sizes[axis] for axis in sharding if sharding[axis] == dim))
        for dim in sorted(set(sharding.values()))
    ]


def lies_as_stated(sharding: TensorSharding, mesh: NamedMesh) -> bool:
    """Whether stored parts lie on the devices that the mesh says. Neighbouring devices hold
    neighbouring parts of the last dimension. So the answer is no if an outer axis shards a later
    dimension than an inner one, or if outer axes shard a dimension and the innermost do not."""
    every = [axis for axis, size in enumerate(mesh.sizes) if size > 1]
    used = [axis for axis in every if axis in sharding]
    dims = [sharding[axis] for axis in used]
    return dims == sorted(dims) and used == every[len(every) - len(used) :]


@dataclass(frozen=True)
class StoringBuilder(Builder):
    """Cuts operators by their strategies, and stores weights in parts. ``stored``: parts by
    name."""

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
        """The graph with values in parts along the first of their dimensions; and the dimensions
        that are left for these parts."""
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


def _along(rules: RootedRules, value: Value, dim: int, degree: int) -> Applied | None:
    """A value as the combine of ``degree`` parts along a dimension."""
    graph = Graph((value,))
    for rule in partings(rules):
        match = next(matches_at(rule, value.node, graph), None)
        if match is None:
            continue
        free = dict.fromkeys(rule.free_symbols, degree)
        made = build(rule, match, free)
        if made is not None and made[0].node.operator_call.integer("dim") == dim:
            return Applied(rule, match, free, made)
    return None
