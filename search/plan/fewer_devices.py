"""Which of a machine's devices are worth a try alone, and how many of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from pcg.machine import Machine
from search.map.building import Cut


class PartOfMachine(NamedTuple):
    """Devices in a row of a machine as a machine of its own; ``first`` is the number of the first
    of them."""

    first: int
    machine: Machine


def of_each_kind(machine: Machine) -> Iterator[PartOfMachine]:
    """The devices of each kind. Links are those of the whole machine, of which nodes are full."""
    if not machine.others:
        return
    bounds = [0, *(other.first_node for other in machine.others), machine.nodes]
    each = machine.devices_per_node
    for begin, end in pairwise(bounds):
        count = min(end * each, machine.devices) - begin * each
        yield PartOfMachine(begin * each, machine.part(begin * each, count))


def begun_at(first: int, cut: Cut) -> Cut:
    """The same on devices that are so many further up."""
    moved = {view: replace(view, start=view.start + first) for view in set(cut.views.values())}
    return replace(cut, views={node: moved[view] for node, view in cut.views.items()})


def fewer(machine: Machine) -> list[int]:
    """How many of its devices are worth a try alone: half of them, and the greatest powers of two
    below their number and that of a unit, which come after those that a cut by 3 can use."""
    units = machine.devices, min(machine.levels[0].count, machine.devices)
    powers = {1 << (unit - 1).bit_length() - 1 for unit in units if unit > 1}
    halves = {machine.devices // 2} if machine.devices % 2 == 0 else set[int]()
    return sorted(powers | halves, reverse=True)
