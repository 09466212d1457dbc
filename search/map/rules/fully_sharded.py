"""Fully sharded weights (ZeRO), combined where they are used.

A rule of the library says that a tensor is the combine of its parts. Applied to a weight that all
devices read, it leaves each device one part to keep, with the part's gradient and optimizer states.
A step gathers the parts, and the backward pass turns this into a reduce_scatter. This is ZeRO
(Rajbhandari et al., SC 2020, section 5).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pcg.graph.graph import Graph, Leaf, Node, Value, rebuild
from pcg.graph.pairs import side
from pcg.placement.schedule import Schedule, schedule
from pcg.placement.view import MachineView
from pcg.types.halo import states_halo
from search.cost.derivation import Applied, Scribe
from substitutions.rules.concrete.rooted import RootedRules
from substitutions.rules.match import build, matches_at
from substitutions.rules.rule import Rule

Parting = Callable[[Value, int], Applied | None]
"""A function from a value and a number to the value as the combine of the most parts up to that
number; None if it can't be cut."""


@dataclass(frozen=True)
class PlacedGraph:
    """A graph that is cut, and the machine views of its operators."""

    graph: Graph
    views: Mapping[Node, MachineView]
    order: tuple[Node, ...] = field(default=(), kw_only=True)
    """The order of issue; empty if it is that of the graph."""

    def schedule(self) -> Schedule:
        """The schedule of the graph."""
        return schedule(self.graph, self.views, self.order)


def parting(rules: RootedRules) -> Parting:
    """The function that cuts values in parts by the rules of a library. The number of parts divides
    the number that is asked for."""
    known = partings(rules)

    def of(value: Value, most: int) -> Applied | None:
        graph = Graph((value,))
        for degree in (d for d in range(most, 1, -1) if most % d == 0):
            for rule in known:
                match = next(matches_at(rule, value.node, graph), None)
                free = dict.fromkeys(rule.free_symbols, degree)
                made = None if match is None else build(rule, match, free)
                if match is not None and made is not None:
                    return Applied(rule, match, free, made)
        return None

    return of


def fully_sharded(
    placed: PlacedGraph,
    weights: Collection[str],
    devices: int,
    parted: Parting,
    scribe: Scribe | None,
) -> PlacedGraph:
    """The graph, with the weights of the given names fully sharded on up to ``devices`` devices.
    ``scribe``: if given, writes the derivation down."""
    replaced: dict[Value, Value] = {}
    for leaf in placed.graph.leaves:
        if leaf.is_weight and leaf.leaf.name in weights:
            applied = parted(leaf.value(), devices)
            if applied is not None:
                if scribe is not None:
                    scribe.write(applied)
                replaced.update(applied.replaced)
    values = [value for node in placed.graph.nodes for value in node.outputs]
    kept = tuple(value for value in values if value not in replaced)
    images = dict(zip(kept, rebuild(kept, replaced), strict=True))
    if scribe is not None:
        scribe.rename(images)
    views = {images[node.value()].node: view for node, view in placed.views.items()}
    order = tuple(images[node.value()].node for node in placed.order)
    return PlacedGraph(placed.graph.replace(replaced), views, order=order)


def partings(rules: RootedRules) -> tuple[Rule, ...]:
    """The rules that say that a tensor is the combine of its parts."""
    return tuple(rule for rule in rules.rooted(None, parallel=True) if _is_parting(rule))


def _is_parting(rule: Rule) -> bool:
    if len(rule.left) != 1 or not isinstance(rule.left[0].node.call, Leaf):
        return False
    combine = rule.right[0].node
    if combine.name != "combine":
        return False
    names = [node.name for node in side(rule.right).operators]
    return (
        names == ["partition", "combine"]
        and rule.is_applicable
        and len(rule.free_symbols) == 1
        and not states_halo(combine.inputs[0].node.operator_call)
    )
