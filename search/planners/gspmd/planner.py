"""GSPMD: a plan from annotations of a few tensors (Xu et al., 2021, arXiv:2105.04663).

Problem: users know how a few tensors should be sharded; a compiler finds the rest. Method: named
axes and annotations (section 3, ``annotations``); sharding completion (section 3.5,
``propagation``); and the partitioner (section 4): a strategy for each operator from the shardings
of its tensors (``strategies``), with weights stored as they are sharded (``storage``). Nothing is
searched: the plan is the one that the annotations mean, fast or not. A loss of logits that are
sharded along the classes is unfolded by the library's rules, as XLA sees simple operators.
Complexity: that of the propagation, and one simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf

from pcg.collection import seldom_collected
from pcg.graph.graph import Graph, Node, Value
from search.cost.derivation import Derivation
from search.cost.planned import Planned, SearchReport
from search.cost.progress import now
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import with_unfolded
from search.map.rules.reduced import ReducedAxes
from search.map.space.axes import Strategy
from search.map.space.samples import sampled
from search.map.space.strategies import passes
from search.planners.common import (
    PlannerSetting,
    PricedChoice,
    limited,
    planned_choice,
    priced_choice,
)
from search.planners.gspmd.annotations import (
    NamedMesh,
    TensorAnnotation,
    annotated,
    parse_mesh,
)
from search.planners.gspmd.propagation import PropagatedShardings, propagated
from search.planners.gspmd.reshards import CausedReshard, caused, report_lines
from search.planners.gspmd.storage import Parts, StoringBuilder, lies_as_stated, stored_parts
from search.planners.gspmd.strategies import Partitioner, operand_sharding


@dataclass(frozen=True)
class ShardedPlan:
    """The plan that annotations mean. ``graph``: the graph in which they were propagated;
    ``propagated``: the shardings of all its tensors; ``priced``: the plan with its price."""

    graph: Graph
    mesh: NamedMesh
    annotations: Mapping[Value, TensorAnnotation]
    propagated: PropagatedShardings
    strategies: Mapping[Node, Strategy]
    priced: PricedChoice
    reshards: tuple[CausedReshard, ...]
    elsewhere: tuple[str, ...]
    """Weights whose parts are stored on other devices than their sharding says."""


@dataclass(frozen=True)
class GspmdPlanner:
    """Makes the plan that annotations mean. ``mesh``: such as ``data=4,model=8``; ``shards``: each
    such as ``NAME=data,-,model``. Images may be sharded in rows, with halos."""

    setting: PlannerSetting
    mesh: str | None = None
    """By default one axis, ``data``, of all devices."""
    shards: tuple[str, ...] = ()
    """By default the samples of all inputs along the outermost axis."""
    seconds: float = inf
    """The time limit, in seconds."""

    @seldom_collected()
    def plan(self, name: str, graph: Graph) -> Planned:
        """Return the plan. Raises InputError if the mesh or an annotation does not suit the machine
        or the model, and NegativeAnswer if the plan does not fit or is not ready in time."""
        start = now()
        with limited(name, graph, start, self.seconds):
            made = self.made(graph)
        report = SearchReport(len(made.strategies), 1, "exhausted", {})
        planned = planned_choice(self.setting, name, graph, made.priced, report, start)
        lines = report_lines(made.reshards, made.propagated, made.mesh, made.graph, made.elsewhere)
        return Planned(planned.plan, planned.report, planned.seconds, notes=tuple(lines))

    def made(self, graph: Graph) -> ShardedPlan:
        """Return the plan with its price, whether or not it fits."""
        graph.check()
        chooser = self.setting.chooser(graph, windows=True)
        mesh = parse_mesh(self.mesh or f"data={self.setting.machine.devices}", chooser.mesh.primes)
        annotations = annotated(graph, self.shards, mesh) if self.shards else _samples(graph, mesh)
        before = Derivation.start(graph)
        shardings = _completed(graph, chooser, mesh, annotations)
        opening = self._opened(graph, chooser, shardings, before)
        if opening is not None and annotations.keys() <= set(_values(opening[0])):
            graph, before = opening
            chooser = self.setting.chooser(graph, windows=True)
            shardings = _completed(graph, chooser, mesh, annotations)
        partitioner = Partitioner(mesh, shardings.shardings)
        spaces = chooser.spaces
        strategies = {n: partitioner.strategy(n, spaces.of(n)) for n in graph.operators}
        choice = Choice(graph, strategies, 0.0)
        stored, elsewhere = _stored(graph, chooser, mesh, shardings, strategies)
        builder = StoringBuilder(spaces, stored=stored)
        priced = priced_choice(self.setting, chooser, choice, before, builder)
        reshards = tuple(caused(choice, priced, chooser, mesh))
        return ShardedPlan(
            graph, mesh, annotations, shardings, strategies, priced, reshards, elsewhere
        )

    def _opened(
        self, graph: Graph, chooser: Chooser, shardings: PropagatedShardings, before: Derivation
    ) -> tuple[Graph, Derivation] | None:
        """The graph with operators unfolded that read a tensor which is sharded along the axis that
        they reduce; None if there are none."""
        rules = self.setting.library.concrete(graph)
        reduced = ReducedAxes.of(rules)
        nodes = {n for n in graph.operators if _refuses(n, chooser, shardings)}
        nodes = {node for node in nodes if any(reduced.opened(node))}
        return with_unfolded(graph, before, nodes, rules) if nodes else None


def _completed(
    graph: Graph,
    chooser: Chooser,
    mesh: NamedMesh,
    annotations: Mapping[Value, TensorAnnotation],
) -> PropagatedShardings:
    axes = {
        node: [axis for axis in chooser.spaces.of(node).axes if not passes(axis)]
        for node in graph.operators
    }
    return propagated(graph, mesh, axes, annotations)


def _samples(graph: Graph, mesh: NamedMesh) -> Mapping[Value, TensorAnnotation]:
    """Annotations for the samples of all inputs along the outermost axis, if it divides them."""
    own = [v for v in sampled(graph) if v.type.shape[0] % mesh.sizes[0] == 0]
    return {v: TensorAnnotation(((0,), *[()] * (v.rank - 1))) for v in own}


def _values(graph: Graph) -> list[Value]:
    return [value for node in graph.nodes for value in node.outputs]


def _refuses(node: Node, chooser: Chooser, shardings: PropagatedShardings) -> bool:
    """Whether an operand is sharded along a dimension that the operator can't cut."""
    axes = chooser.spaces.of(node).axes
    return any(
        all(axis.operands[position] != dim for axis in axes)
        for position, value in enumerate(node.inputs)
        for dim in shardings.shardings.get(value, {}).values()
    )


def _stored(
    graph: Graph,
    chooser: Chooser,
    mesh: NamedMesh,
    shardings: PropagatedShardings,
    strategies: Mapping[Node, Strategy],
) -> tuple[dict[str, Parts], tuple[str, ...]]:
    """The weights that are stored in other parts than their first reader needs; and those of them
    whose parts lie on other devices than their sharding says."""
    stored: dict[str, Parts] = {}
    elsewhere: list[str] = []
    seen: set[Node] = set()
    needed = partial(operand_sharding, mesh=mesh)
    for node in graph.operators:
        for position, value in enumerate(node.inputs):
            leaf, sharding = value.node, shardings.shardings.get(value, {})
            if not leaf.is_weight or leaf in seen:
                continue
            seen.add(leaf)
            used = needed(chooser.spaces.of(node), strategies[node], position)
            if sharding and used != sharding:
                stored[leaf.leaf.name] = stored_parts(sharding, mesh)
                if not lies_as_stated(sharding, mesh):
                    elsewhere.append(leaf.leaf.name)
    return stored, tuple(elsewhere)
