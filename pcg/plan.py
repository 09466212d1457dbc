"""Plans: a graph, a machine view for each operator, and how they were arrived at.

``Plan`` is what the search writes and the runtime reads. Its file keeps decisions (graph, views,
derivation) apart from estimates, and carries hashes of the model's graph, the machine and the rule
library that it was made from. All is checked on load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pcg.check import Placement, Problem, check_graph, check_placement
from pcg.errors import InputError
from pcg.files import FileModel, read_json, write_text_atomic
from pcg.graph import Graph, Leaf, Node
from pcg.machine import Machine
from pcg.text import node_names, parse_graph, print_graph
from pcg.training import Optimizer
from pcg.view import MachineView

Count = Annotated[int, Field(ge=1, le=1 << 20)]


class ViewFile(FileModel):
    start: Annotated[int, Field(ge=0)]
    shape: tuple[Count, ...] = Field(strict=False)
    strides: tuple[Annotated[int, Field(ge=0)], ...] = Field(strict=False)


class ModelFile(FileModel):
    name: str
    graph: tuple[str, ...] = Field(strict=False)
    hash: str


class MachineFile(FileModel):
    name: str
    kind: Literal["cpu", "gpu"]
    devices: Count
    hash: str


class Application(FileModel):
    """One rule application of the derivation, in order."""

    rule: str
    text: str
    """The rule itself, so that a plan can be read without the library."""
    at: str
    """The value that the rule replaced, as text, and the degrees that were chosen."""


class DecisionsFile(FileModel):
    graph: tuple[str, ...] = Field(strict=False)
    views: dict[str, ViewFile]
    derivation: tuple[Application, ...] = Field(strict=False)
    optimizer: Optimizer = "sgd"
    recompute: tuple[str, ...] = Field(strict=False, default=())
    """Operators whose results are not kept for the backward pass but computed again."""


class EstimatesFile(FileModel):
    step_seconds: Annotated[float, Field(ge=0)]
    one_device_seconds: Annotated[float, Field(ge=0)]
    communication_elements: Annotated[int, Field(ge=0)]
    search_seconds: Annotated[float, Field(ge=0)]
    peak_memory_bytes: Annotated[int, Field(ge=0)]
    """On the device that holds most."""


class PlanFile(FileModel):
    schema_version: Literal[2]
    model: ModelFile
    machine: MachineFile
    library_hash: str
    decisions: DecisionsFile
    estimates: EstimatesFile


@dataclass(frozen=True)
class Plan:
    """A training plan. ``model`` is the graph as written, ``graph`` the one to run."""

    model_name: str
    model: Graph
    graph: Graph
    views: Mapping[Node, MachineView]
    machine: MachineFile
    library_hash: str
    derivation: tuple[Application, ...]
    estimates: EstimatesFile
    optimizer: Optimizer = "sgd"
    recompute: frozenset[Node] = frozenset()
    """The operators whose results are not kept for the backward pass but computed again."""


def machine_record(machine: Machine) -> MachineFile:
    """What a plan remembers of its machine."""
    return MachineFile(
        name=machine.name,
        kind=machine.device.kind,
        devices=machine.devices,
        hash=machine.hash(),
    )


def check_plan(plan: Plan) -> list[Problem]:
    """What is wrong with a plan's graph, and if nothing is, with its views."""
    placement = Placement(plan.graph, plan.views, plan.machine.devices)
    return check_graph(plan.graph, training=True) or check_placement(placement)


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan file, whole or not at all."""
    names = node_names(plan.graph)
    views = {
        names[node][0]: ViewFile(start=v.start, shape=v.shape, strides=v.strides)
        for node in plan.graph.nodes
        if (v := plan.views.get(node)) is not None
    }
    content = PlanFile(
        schema_version=2,
        model=ModelFile(name=plan.model_name, graph=_lines(plan.model), hash=plan.model.digest),
        machine=plan.machine,
        library_hash=plan.library_hash,
        decisions=DecisionsFile(
            graph=_lines(plan.graph),
            views=views,
            derivation=plan.derivation,
            optimizer=plan.optimizer,
            recompute=tuple(names[node][0] for node in plan.graph.nodes if node in plan.recompute),
        ),
        estimates=plan.estimates,
    )
    write_text_atomic(path, content.model_dump_json(indent=1) + "\n")


def load_plan(path: str | Path) -> Plan:
    """Read and check a plan. Raises InputError naming the file and the place in it."""
    where = str(path)
    content = read_json(path, PlanFile)
    model = _graph(content.model.graph, f"{where}: model.graph")
    if model.digest != content.model.hash:
        raise InputError(where, "model.hash is not that of model.graph, the file was altered")
    graph = _graph(content.decisions.graph, f"{where}: decisions.graph")
    views = _views(graph, content, where)
    _same_leaves(graph, model, where)
    if [v.type.shape for v in graph.outputs] != [v.type.shape for v in model.outputs]:
        raise InputError(where, "decisions.graph returns other shapes than model.graph")
    return Plan(
        content.model.name,
        model,
        graph,
        views,
        content.machine,
        content.library_hash,
        content.decisions.derivation,
        content.estimates,
        content.decisions.optimizer,
        _recomputed(graph, content, where),
    )


def _lines(graph: Graph) -> tuple[str, ...]:
    return tuple(print_graph(graph).splitlines())


def _graph(lines: tuple[str, ...], where: str) -> Graph:
    graph = parse_graph("\n".join(lines), where)
    for problem in check_graph(graph, training=True):
        raise InputError(where, str(problem))
    return graph


def _views(graph: Graph, content: PlanFile, where: str) -> dict[Node, MachineView]:
    nodes = {names[0]: node for node, names in node_names(graph).items()}
    views: dict[Node, MachineView] = {}
    for name, view in content.decisions.views.items():
        if name not in nodes:
            raise InputError(f"{where}: decisions.views.{name}", "no such operator in the graph")
        views[nodes[name]] = MachineView(view.start, view.shape, view.strides)
    for problem in check_placement(Placement(graph, views, content.machine.devices)):
        raise InputError(f"{where}: decisions.views.{problem.node}", problem.what)
    return views


def _recomputed(graph: Graph, content: PlanFile, where: str) -> frozenset[Node]:
    nodes = {names[0]: node for node, names in node_names(graph).items() if not node.is_leaf}
    for name in content.decisions.recompute:
        if name not in nodes or nodes[name].is_parallel:
            problem = f"{name}: no computing operator in the graph"
            raise InputError(f"{where}: decisions.recompute", problem)
    return frozenset(nodes[name] for name in content.decisions.recompute)


def _same_leaves(graph: Graph, model: Graph, where: str) -> None:
    """The graph to run has to read what the model reads, however it is cut."""
    known = {_identity(node.leaf) for node in model.leaves}
    for leaf in (node.leaf for node in graph.leaves):
        if _identity(leaf) not in known:
            problem = f"{leaf.name}: {leaf.kind} of shape {_shape(leaf)}, not in model.graph"
            raise InputError(f"{where}: decisions.graph", problem)


def _identity(leaf: Leaf) -> tuple[str, str, tuple[int, ...], int | None]:
    return leaf.kind, leaf.name, _shape(leaf), leaf.below


def _shape(leaf: Leaf) -> tuple[int, ...]:
    return leaf.type.shape if leaf.type else ()
