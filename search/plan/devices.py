"""How many of a machine's devices are worth a try alone."""

from __future__ import annotations

from pcg.machine import Machine


def fewer(machine: Machine) -> list[int]:
    """How many of its devices are worth a try alone: half of them, and the greatest powers of two
    below their number and that of a unit, which come after those that a cut by 3 can use."""
    units = machine.devices, min(machine.levels[0].count, machine.devices)
    powers = {1 << (unit - 1).bit_length() - 1 for unit in units if unit > 1}
    halves = {machine.devices // 2} if machine.devices % 2 == 0 else set[int]()
    return sorted(powers | halves, reverse=True)
