"""Plans written by hand."""

from __future__ import annotations

from collections.abc import Mapping

from pcg.graph.graph import Graph, Node
from pcg.machine import load_machine
from pcg.placement.layout import covers, grid
from pcg.placement.view import MachineView
from pcg.plan.plan import Plan, machine_record
from pcg.plan.schema import EstimatesFile
from pcg.plan.text import node_names

Views = Mapping[str, MachineView | int]


def make_plan(model: Graph, graph: Graph, devices: int, views: Views) -> Plan:
    """A plan on the local machine. ``views``: views by printed name; an integer stands for the
    first of consecutive devices. Other operators start at device 0."""
    names = node_names(graph)
    chosen: dict[Node, MachineView] = {}
    left = dict(views)
    for node in graph.nodes:
        if node.is_leaf or node.is_parallel:
            continue
        view = left.pop(names[node][0], 0)
        packed = MachineView.packed(view, grid(node)) if isinstance(view, int) else view
        assert covers(packed, node)
        chosen[node] = packed
    assert not left, f"no such operators: {left}"
    return plan_with(model, graph, chosen, devices)


def plan_with(model: Graph, graph: Graph, views: Mapping[Node, MachineView], devices: int) -> Plan:
    """A plan on the local machine with these views."""
    machine = machine_record(load_machine("local").with_devices(devices))
    estimates = EstimatesFile(
        step_seconds=0.5,
        one_device_seconds=1.0,
        communication_elements=0,
        peak_memory_bytes=0,
    )
    return Plan("test", model, graph, views, machine, "", (), estimates)
