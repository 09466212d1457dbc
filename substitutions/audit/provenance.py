"""Checks that a plan was made from the library, the machine and the model that it names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from pcg.errors import InputError
from pcg.machine import Machine
from pcg.plan.naming import NamingFile, ParameterFile
from pcg.plan.plan import Plan, machine_record
from pcg.plan.schema import MachineFile
from pcg.plan.statistics import RunningFile
from pcg.plan.text import print_graph
from substitutions.audit.captured import CapturedModel
from substitutions.audit.errors import Finding
from substitutions.rules.store import Library


def check_library(plan: Plan, library: Library, name: str) -> Iterator[Finding]:
    """Check that a library is the one that the plan was made with."""
    if plan.library_hash != library.hash:
        problem = f"{plan.library_hash}, expected {library.hash}, that of {name}"
        yield Finding("library_hash", problem)


def check_machine(plan: Plan, machine: Machine) -> Iterator[Finding]:
    """Check that the plan was made for devices of this machine."""
    devices = plan.machine.devices
    nodes = -(-devices // machine.devices_per_node)
    try:
        used = machine if machine.devices == devices else machine.with_nodes(nodes)
        record = machine_record(used if used.devices == devices else used.with_devices(devices))
    except InputError as error:
        yield Finding("machine.devices", str(error))
        return
    for name in MachineFile.model_fields:
        here, there = getattr(plan.machine, name), getattr(record, name)
        if here != there:
            yield Finding(f"machine.{name}", f"{here}, expected {there}")


def check_model(plan: Plan, name: str, model: CapturedModel) -> Iterator[Finding]:
    """Check that the plan begins with the graph of a captured model."""
    if model.digest == plan.model.digest:
        return
    here = print_graph(plan.model).splitlines()
    pairs = enumerate(zip(here, model.lines, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(here), len(model.lines)))
    lines = [
        repr(graph_lines[at]) if at < len(graph_lines) else "nothing"
        for graph_lines in (here, model.lines)
    ]
    yield Finding(f"model.graph[{at}]", f"{lines[0]}, expected {lines[1]} as {name} is captured")


def check_naming(plan: Plan, name: str, model: CapturedModel) -> Iterator[Finding]:
    """Check that the leaves of the graph have the names of the captured module; with others,
    weights would be saved under wrong names. Yields the first difference."""
    here, there = _places(plan.naming), _places(model.naming)
    for place in sorted(here.keys() | there.keys()):
        stated, expected = here.get(place, "nothing"), there.get(place, "nothing")
        if stated != expected:
            problem = f"{stated}, expected {expected} as {name} is captured"
            yield Finding(f"naming.{place}", problem)
            return


def check_statistics(plan: Plan, name: str, expected: Sequence[RunningFile]) -> Iterator[Finding]:
    """Check that running statistics belong to the tensors of the plan's graph that the module's
    batch norms normalise. Yields the first difference."""
    for number, pair in enumerate(zip_longest(plan.statistics, expected)):
        here, there = (None if record is None else record.model_dump() for record in pair)
        if here is None or there is None:
            said, wanted = ("nothing" if record is None else "a record" for record in (here, there))
            problem = f"{said}, expected {wanted} as {name} is captured"
            yield Finding(f"statistics[{number}]", problem)
            return
        for part, stated in here.items():
            if stated != there[part]:
                problem = f"{stated}, expected {there[part]} as {name} is captured"
                yield Finding(f"statistics[{number}].{part}", problem)
                return


def _described(parameter: ParameterFile) -> str:
    parts = f" of {', '.join(parameter.stacked)}" if parameter.stacked else ""
    return " = ".join(parameter.names) + parts + (", transposed" if parameter.transposed else "")


def _places(naming: NamingFile) -> dict[str, str]:
    """The names in text, by place in the file."""
    parameters = {f"parameters.{weight}": _described(p) for weight, p in naming.parameters.items()}
    buffers = {f"buffers.{leaf}": buffer for leaf, buffer in naming.buffers.items()}
    inputs = {f"inputs[{i}]": str(leaf) for i, leaf in enumerate(naming.inputs)}
    return parameters | buffers | inputs
