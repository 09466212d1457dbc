"""How much memory a plan takes on each device.

A weight is held with its gradient; what operators make, and what is moved to where it is wanted, is
held from the forward pass until back-propagation has used it. Nothing is freed before, so this is
what a step takes at most, without the workspaces of kernels.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod

from pcg.layout import Layout
from pcg.schedule import Compute, Load, Move, Schedule

WEIGHT_COPIES = 2
"""A weight and its gradient; SGD without momentum keeps no state of its own."""


def peak_bytes(schedule: Schedule, itemsize: int) -> int:
    """Bytes on the device that holds most."""
    held: dict[int, int] = defaultdict(int)
    for layout in schedule.homes.values():
        _add(held, layout, WEIGHT_COPIES * itemsize)
    for step in schedule.steps:
        match step:
            case Compute():
                for slot in step.results:
                    _add(held, slot.layout, itemsize)
            case Move():
                _add(held, step.target.layout, itemsize)
            case Load() if step.slot.value.node.leaf.kind == "input":
                _add(held, step.slot.layout, itemsize)
            case _:
                pass
    return max(held.values(), default=0)


def _add(held: dict[int, int], layout: Layout, itemsize: int) -> None:
    block = prod(layout.type.block) * itemsize
    for device, _ in layout.pieces:
        held[device] += block
