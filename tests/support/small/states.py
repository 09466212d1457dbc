"""States of annealings to begin with."""

from __future__ import annotations

from pcg.graph.graph import Graph
from search.map.choose.choosing import Choice
from search.map.space.mapping import OperatorMapping
from search.refine.mappings import PlanState


def on_device(graph: Graph, device: int = 0) -> PlanState:
    """The state with all operators on one device, in the order of the graph."""
    count = len(graph.operators)
    return PlanState((OperatorMapping(device),) * count, tuple(range(count)))


def chosen(graph: Graph, state: PlanState) -> Choice:
    """The choice of a state."""
    return state.chosen(Choice(graph, {}, 0.0))
