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

from pcg.errors import InputError, UnityError
from pcg.files import FileModel, read_json, write_text_atomic
from pcg.graph import Graph, Node
from pcg.layout import grid
from pcg.machine import Machine
from pcg.text import node_names, parse_graph, print_graph
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
    at: str
    """The operator that the rule was applied at, as text."""


class DecisionsFile(FileModel):
    graph: tuple[str, ...] = Field(strict=False)
    views: dict[str, ViewFile]
    derivation: tuple[Application, ...] = Field(strict=False)


class EstimatesFile(FileModel):
    step_seconds: Annotated[float, Field(ge=0)]
    one_device_seconds: Annotated[float, Field(ge=0)]
    communication_elements: Annotated[int, Field(ge=0)]
    search_seconds: Annotated[float, Field(ge=0)]


class PlanFile(FileModel):
    schema_version: Literal[1]
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


def machine_record(machine: Machine) -> MachineFile:
    """What a plan remembers of its machine."""
    return MachineFile(
        name=machine.name,
        kind=machine.device.kind,
        devices=machine.devices,
        hash=machine.hash(),
    )


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan file, whole or not at all."""
    names = node_names(plan.graph)
    views = {
        names[node][0]: ViewFile(start=v.start, shape=v.shape, strides=v.strides)
        for node in plan.graph.nodes
        if (v := plan.views.get(node)) is not None
    }
    content = PlanFile(
        schema_version=1,
        model=ModelFile(
            name=plan.model_name, graph=_lines(plan.model), hash=plan.model.digest
        ),
        machine=plan.machine,
        library_hash=plan.library_hash,
        decisions=DecisionsFile(
            graph=_lines(plan.graph), views=views, derivation=plan.derivation
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
    )


def _lines(graph: Graph) -> tuple[str, ...]:
    return tuple(print_graph(graph).splitlines())


def _graph(lines: tuple[str, ...], where: str) -> Graph:
    graph = parse_graph("\n".join(lines), where)
    try:
        graph.check()
    except UnityError as error:
        raise InputError(where, str(error)) from error
    return graph


def _views(graph: Graph, content: PlanFile, where: str) -> dict[Node, MachineView]:
    given = dict(content.decisions.views)
    views: dict[Node, MachineView] = {}
    for node, (name, *_) in node_names(graph).items():
        if node.is_leaf or node.is_parallel:
            continue
        place = f"{where}: decisions.views.{name}"
        if name not in given:
            raise InputError(place, f"missing, expected a view of {grid(node)} tasks")
        file = given.pop(name)
        view = MachineView(file.start, file.shape, file.strides)
        if view.shape != grid(node) or len(view.strides) != len(view.shape):
            raise InputError(place, f"shape {view.shape}, expected {grid(node)} ({node.name})")
        if not view.is_injective:
            raise InputError(place, "puts two tasks on one device")
        if max(view.devices) >= content.machine.devices:
            problem = f"device {max(view.devices)}, the machine has {content.machine.devices}"
            raise InputError(place, problem)
        views[node] = view
    if given:
        raise InputError(f"{where}: decisions.views.{min(given)}", "no such operator in the graph")
    return views
