"""A look at the model of the command ``optimize``, which needs torch and no part of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pcg.collection import seldom_collected
from pcg.machine import Machine, load_machine
from unity.optimize import Options
from unity.support.batch_norm import norm_groups

if TYPE_CHECKING:
    from pcg.capture import Captured
    from runtime.train.eager import ModuleAgreement


class Look(NamedTuple):
    """A model that was captured. ``agreement``: how the graph agrees with the module; None if that
    comparison is left out."""

    captured: Captured
    agreement: ModuleAgreement | None


def machine_of(options: Options) -> Machine:
    """Return the machine that the options ask for. Raises InputError."""
    machine = load_machine(options.machine)
    if options.nodes is not None:
        machine = machine.with_nodes(options.nodes)
    if options.devices is not None:
        machine = machine.with_devices(options.devices)
    return machine


def wanted(options: Options) -> tuple[int, int]:
    """Return the number of devices that the options ask for, and the number of groups of samples
    for batch norms. Raises InputError."""
    devices = machine_of(options).devices
    return devices, norm_groups(options.batch_norm, options.planner, devices)


@seldom_collected()  # nearly all that is loaded stays
def look_at(options: Options) -> Look:
    """Capture the model, and compare its graph with the module. Raises InputError."""
    # Imported here because it takes long, and the process that forked does not need it.
    from pcg.models import capture_model

    captured = capture_model(options.model, options.batch, *wanted(options))
    return Look(captured, _compared(options))


def _compared(options: Options) -> ModuleAgreement | None:
    """How the graph of a user's module agrees with it; None if that is left out."""
    if not (options.compare and ".py" in options.model):
        return None
    # Imported here because models of the zoo do not need the runtime.
    from runtime.train.eager import compare_with_module

    return compare_with_module(options.model)
