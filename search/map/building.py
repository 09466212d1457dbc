"""Building: the graph whose operators are cut as chosen, by one rule application for each index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from pcg.graph.graph import Graph, Node, Value
from pcg.placement.view import MachineView
from pcg.plan.derivation import Application
from pcg.types.halo import typing_of
from search.cost.derivation import Derivation, Scribe
from search.cost.progress import check_time
from search.map.choose.choosing import Choice
from search.map.choose.spaces import Spaces
from search.map.rules.cuts import applied
from search.map.rules.cutting import CutNode, Cutting, PlacedAxes, in_order
from search.map.rules.fully_sharded import PlacedGraph, fully_sharded
from search.map.space.axes import Strategy
from search.map.space.mapping import OperatorMapping, mapping_of
from search.map.space.strategies import IDLE, REPLICATE, Space, passes


@dataclass(frozen=True)
class Cut(PlacedGraph):
    """A graph that is cut, with the steps of its derivation."""

    steps: tuple[Application, ...]


@dataclass(frozen=True)
class Builder:
    """Cuts operators by their strategies."""

    spaces: Spaces
    sharded: int = 1
    """The most parts in which weights are stored if the choice does not shard them fully."""

    def placed(self, choice: Choice) -> PlacedGraph:
        """Return the graph that is cut as chosen, without its derivation."""
        return self._built(choice, None)

    def cut(self, choice: Choice, before: Derivation | None = None) -> Cut:
        """Return the graph that is cut as chosen, and its derivation. ``before``: the derivation of
        the choice's graph, if that graph is not the model's own."""
        scribe = Scribe.after(before or Derivation.start(choice.graph))
        placed = self._built(choice, scribe)
        return Cut(placed.graph, placed.views, tuple(scribe.steps), order=placed.order)

    def _built(self, choice: Choice, scribe: Scribe | None) -> PlacedGraph:
        new: dict[Value, Value] = {}
        views: dict[Node, MachineView] = {}
        computing: dict[Node, Node] = {}
        for node in choice.graph.nodes:
            if node.is_leaf:
                new[node.value()] = node.value()
                continue
            check_time()
            mapping = self.mapping(choice, node)
            inputs = [new[value] for value in node.inputs]
            cut = partial(self._cut_on, node, mapping.cuts)
            kind = self.spaces.kind(node), mapping.cuts
            cut_as = self.spaces.templates.cut
            outer, inner, placed = cut_as(kind, node, inputs, cut, scribe=scribe)
            views[inner] = placed.view(mapping)
            computing[node] = inner
            new.update(zip(node.outputs, outer, strict=True))
        graph = Graph(tuple(new[value] for value in choice.graph.outputs))
        order = tuple(computing[node] for node in choice.order)
        return self._sharded(PlacedGraph(graph, views, order=order), choice, scribe)

    def _sharded(self, placed: PlacedGraph, choice: Choice, scribe: Scribe | None) -> PlacedGraph:
        """Return the cut graph, with its weights fully sharded if the choice says so."""
        devices = self.spaces.mesh.machine.devices if choice.fully_sharded else self.sharded
        if devices == 1:
            return placed
        weights = {leaf.leaf.name for leaf in choice.graph.leaves} - choice.kept_whole
        return fully_sharded(placed, weights, devices, self.spaces.cuts.parting, scribe)

    def mapping(self, choice: Choice, node: Node) -> OperatorMapping:
        """The mapping of an operator by a choice: how it is cut, and on which devices."""
        mapping = choice.mappings.get(node)
        if mapping is not None:
            return mapping
        mesh = self.spaces.mesh
        start = choice.starts.get(node, 0)
        return mapping_of(choice.strategies[node], start, mesh.primes, mesh.strides)

    def _cut_on(self, whole: Node, cuts: Sequence[tuple[int, int]], node: Node) -> CutNode:
        return self.cut_along(whole, node, cuts)

    def cut_node(self, whole: Node, node: Node, strategy: Strategy) -> CutNode:
        """Cut an operator by one of its strategies. ``whole``: the operator in the whole graph;
        ``node``: the same operator, reading operands that are cut."""
        mesh = self.spaces.mesh
        mapping = mapping_of(strategy, 0, mesh.primes, mesh.strides)
        return self.cut_along(whole, node, mapping.cuts)

    def cut_along(self, whole: Node, node: Node, cuts: Sequence[tuple[int, int]]) -> CutNode:
        """Cut an operator along axes of its space. ``cuts``: the place and degree of each axis,
        slowest first; ``whole`` and ``node``: as in ``cut_node``."""
        space, every = self.spaces.of(whole), self.spaces.cuts
        rules = every.of(whole)
        cutting = Cutting(list(node.outputs), node)
        copied: set[int] = set()
        for place in in_order(space, [place for place, _ in cuts]):
            axis = space.axes[place]
            degree = prod(degree for other, degree in cuts if other == place)
            if not passes(axis):
                cutting.apply(applied(rules[axis.name], cutting.inner, degree))
                continue
            carriers = [i for i, at in enumerate(axis.operands) if at is not None]
            if not cutting.let_pass(every, carriers, degree):
                copied.add(place)
        left = [REPLICATE if place in copied else place for place, _ in cuts]
        places = tuple(_places(cutting.inner, space, left))
        return cutting.done(PlacedAxes(frozenset(copied), places))


def _places(node: Node, space: Space, cut: Sequence[int]) -> list[int]:
    """For each axis of an operator's task grid, the place of that axis in the operator's space."""
    names = [axis.name for axis in space.axes]
    typing = typing_of(node.operator_call, [value.type for value in node.inputs])
    axes = [axis.name for axis in typing.axes]
    through = [entry for entry in cut if entry >= 0 and passes(space.axes[entry])]
    passed = through[0] if through else IDLE
    return [*(names.index(a) if a in names else IDLE for a in axes), passed, REPLICATE]
