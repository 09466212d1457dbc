"""Parts of a machine that need not begin at its first device."""

from __future__ import annotations

from pcg.device import Device
from pcg.errors import InputError
from pcg.machine import Machine


def machine_part(machine: Machine, first: int, devices: int) -> Machine:
    """Return `devices` devices of a machine from number `first` on, as a machine of their own.

    Its links are those of the first devices, so the part must not straddle more units than those
    do. Raises InputError if the machine has not so many devices.
    """
    if first < 0 or first + devices > machine.devices:
        problem = f"expected devices 0 to {machine.devices - 1}, got {first + devices - 1}"
        raise InputError(machine.name, problem)
    alike = machine.with_devices(devices)
    if not machine.others:
        return alike
    node, kind = first // machine.devices_per_node, machine.device_at(first)
    others = tuple(
        other.model_copy(update={"first_node": other.first_node - node})
        for other in machine.others
        if node < other.first_node < node + alike.nodes
    )
    device = Device(**{name: getattr(kind, name) for name in Device.model_fields})
    return alike.model_copy(update={"device": device, "others": others})
