"""The parts of a machine on which plans are tried: devices of one kind, and fewer devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import NamedTuple

from pcg.machine import Machine
from pcg.machine_part import machine_part
from search.map.building import Cut


class PartOfMachine(NamedTuple):
    """Consecutive devices of a machine, as a machine of its own. ``first``: the number of the first
    device."""

    first: int
    machine: Machine


def of_each_kind(machine: Machine) -> Iterator[PartOfMachine]:
    """The devices of each kind. Links are those of the whole machine, whose nodes are full."""
    if not machine.others:
        return
    bounds = [0, *(other.first_node for other in machine.others), machine.nodes]
    each = machine.devices_per_node
    for begin, end in pairwise(bounds):
        count = min(end * each, machine.devices) - begin * each
        yield PartOfMachine(begin * each, machine_part(machine, begin * each, count))


def begun_at(first: int, cut: Cut) -> Cut:
    """The same cut graph, on devices whose numbers are higher by ``first``."""
    moved = {view: replace(view, start=view.start + first) for view in set(cut.views.values())}
    return replace(cut, views={node: moved[view] for node, view in cut.views.items()})


def fewer(machine: Machine) -> list[int]:
    """The numbers of devices that are tried: half of the machine, and the greatest powers of two
    below its number of devices and that of a unit. The latter suit tensors that don't divide by
    3."""
    units = machine.devices, min(machine.levels[0].count, machine.devices)
    powers = {1 << (unit - 1).bit_length() - 1 for unit in units if unit > 1}
    halves = {machine.devices // 2} if machine.devices % 2 == 0 else set[int]()
    return sorted(powers | halves, reverse=True)


def try_fewer(
    part: PartOfMachine, work: float, known: float, attempt: Callable[[PartOfMachine], float]
) -> None:
    """Try the first devices of a part, and ever fewer as long as that is faster. A number of
    devices is left out if the ``work`` alone, spread over them, would take longer than the known
    plan. So are all if no plan fits, as fewer have less memory. ``known``: seconds of a step of the
    known plan; ``attempt``: tries devices, and returns the seconds of the plan known then."""
    best = part
    while known < inf:
        whole, least = best, known
        for devices in fewer(whole.machine):
            if work / devices > least:
                break
            some = part._replace(machine=part.machine.with_devices(devices))
            known = attempt(some)
            if known < least:
                best, least = some, known
        if best is whole:
            return
