"""Whether a plan was made from what it says: this library, this machine, this model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pcg.errors import InputError
from pcg.graph import Graph
from pcg.machine import Machine
from pcg.models import build_model
from pcg.plan import MachineFile, Plan, machine_record
from pcg.text import print_graph
from substitutions.audit.errors import Finding
from substitutions.store import Library


def check_library(plan: Plan, library: Library, name: str) -> Iterator[Finding]:
    """That the rules are those that the plan was made with."""
    if plan.library_hash != library.hash:
        problem = f"{plan.library_hash}, expected {library.hash}, that of {name}"
        yield Finding("library_hash", problem)


def check_machine(plan: Plan, machine: Machine) -> Iterator[Finding]:
    """That so many devices of a machine are what the plan was made for."""
    devices = plan.machine.devices
    nodes = -(-devices // machine.devices_per_node)
    try:
        used = machine if machine.devices == devices else machine.with_nodes(nodes)
        found = machine_record(used if used.devices == devices else used.with_devices(devices))
    except InputError as error:
        yield Finding("machine.devices", str(error))
        return
    for name in MachineFile.model_fields:
        here, there = getattr(plan.machine, name), getattr(found, name)
        if here != there:
            yield Finding(f"machine.{name}", f"{here}, expected {there}")


@dataclass(frozen=True)
class Captured:
    """A model as it is captured, in a form that can be sent between processes."""

    digest: str
    lines: tuple[str, ...]


def captured(name: str, batch: int | None, devices: int) -> Captured:
    """A model's graph at a global batch. Raises InputError where there is no such model."""
    graph = build_model(name, batch, devices)
    return Captured(graph.digest, tuple(print_graph(graph).splitlines()))


def check_model(plan: Plan, name: str, model: Captured) -> Iterator[Finding]:
    """That the graph that the plan begins with is what capturing a model gives."""
    if model.digest == plan.model.digest:
        return
    here = print_graph(plan.model).splitlines()
    pairs = enumerate(zip(here, model.lines, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(here), len(model.lines)))
    lines = [repr(own[at]) if at < len(own) else "nothing" for own in (here, model.lines)]
    yield Finding(f"model.graph[{at}]", f"{lines[0]}, expected {lines[1]} as {name} is captured")


def batch_of(model: Graph) -> int | None:
    """The first dimension of the first input, which is the batch where a model has one."""
    shapes = (n.leaf.type.shape for n in model.leaves if n.leaf.kind == "input" and n.leaf.type)
    return next((shape[0] for shape in shapes if shape), None)
