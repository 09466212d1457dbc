"""Whether a plan was made for what is here: its machine, and its rule library."""

from __future__ import annotations

from pathlib import Path

from pcg.errors import InputError
from pcg.machine import Machine, load_machine, preset_names
from pcg.plan import MachineFile, Plan
from substitutions.store import is_library


def check_origin(
    plan: Plan, where: str, machine: str | None = None, rules: str | Path | None = None
) -> None:
    """Raises InputError for a plan of another machine or rule library than are here.

    ``machine``: a preset or file, by default the preset that the plan names; a plan of a file that
    nobody names is taken at its word. ``rules``: a library, by default the one that comes with
    Unity; a plan that applies no rules is of any.
    """
    name = plan.machine.name if machine is None else machine
    if machine is not None or name in preset_names():
        machine_of(plan.machine, where, load_machine(name))
    if plan.derivation and not is_library(plan.library_hash, rules):
        problem = f"was made with the rule library {plan.library_hash}, which is not the one here"
        raise InputError(where, problem)


def machine_of(
    wanted: MachineFile, where: str, found: Machine, nodes: int | None = None
) -> Machine:
    """A machine as large as the one that a plan names. Raises InputError where it is another."""
    if nodes is None:
        nodes = -(-wanted.devices // found.devices_per_node)
    found = found.with_nodes(nodes)
    if found.devices > wanted.devices:
        found = found.with_devices(wanted.devices)
    if found.hash() != wanted.hash:
        problem = f"was made for {wanted.devices} devices of {wanted.name} as it was then,"
        raise InputError(where, f"{problem} which {found.devices} of {found.name} are not")
    return found
