"""Checks that a plan belongs to a machine, a rule library and a model."""

from __future__ import annotations

from pathlib import Path

from pcg.errors import InputError
from pcg.machine import Machine, load_machine, preset_names
from pcg.plan.naming import batch_of
from pcg.plan.plan import Plan
from pcg.plan.schema import MachineFile
from search.cost.efficiency import Speed
from substitutions.audit.captured import captured
from substitutions.audit.provenance import check_model
from substitutions.rules.store import is_library
from unity.support.speed import measured


def check_origin(
    plan: Plan, where: str, machine: str | None = None, rules: str | Path | None = None
) -> None:
    """Raise InputError for a plan of another machine or rule library.

    ``machine``: a preset or a file. Default: the preset that the plan names; a plan for a machine
    file is not checked then. ``rules``: a library. Default: the one that comes with Unity. A plan
    that applies no rules belongs to any library.
    """
    name = plan.machine.name if machine is None else machine
    if machine is not None or name in preset_names():
        machine_of(plan.machine, where, load_machine(name))
    if plan.derivation and not is_library(plan.library_hash, rules):
        problem = f"was made with another rule library than the one here, {plan.library_hash}"
        raise InputError(where, problem)


def check_graph_of(plan: Plan, where: str, model: str) -> None:
    """Capture a model again, with the batch of the plan, and compare its graph with the plan's.

    ``model``: a name of the zoo, or FILE.py:FUNCTION. Raises InputError if the graphs differ, or if
    the model cannot be captured.
    """
    batch = batch_of(plan.model, plan.naming) or None
    again = captured(model, batch, plan.machine.devices, plan.norm_groups)
    for finding in check_model(plan, model, again):
        raise InputError(where, f"was made for another graph, {finding}")


def machine_of(
    wanted: MachineFile, where: str, machine: Machine, nodes: int | None = None
) -> Machine:
    """Return a machine cut to the size of a plan's. Raises InputError if it is another machine."""
    if nodes is None:
        nodes = -(-wanted.devices // machine.devices_per_node)
    machine = machine.with_nodes(nodes)
    if machine.devices > wanted.devices:
        machine = machine.with_devices(wanted.devices)
    if machine.hash() != wanted.hash:
        here = f"{machine.devices} of {machine.name} as it is here"
        problem = f"was made for {wanted.devices} devices of {wanted.name}, not for {here}"
        raise InputError(where, problem)
    return machine


def machine_and_speed(
    plan: Plan,
    where: str,
    machine: str | None = None,
    nodes: int | None = None,
    profile: Path | None = None,
) -> tuple[Machine, Speed | None]:
    """Return the machine of a plan, and the speed of its devices by a profile; None without one.

    ``machine``: a preset or a file. Default: the preset that the plan names. Raises InputError if
    the plan was made for another machine.
    """
    name = plan.machine.name if machine is None else machine
    return measured(machine_of(plan.machine, where, load_machine(name), nodes), profile)
