"""Where weights are stored, and which ranks train them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from pcg.graph.graph import Leaf
from pcg.placement.late import LateGradient, late_gradients
from pcg.placement.layout import Layout
from pcg.placement.schedule import Schedule, Slot
from pcg.plan.plan import Plan
from runtime.program.program import Weight


class WeightHome(NamedTuple):
    """A weight: its register, the layout in which it is stored, and the position of the step that
    reads it first. ``late``: as ``Weight.late``."""

    register: str
    leaf: Leaf
    layout: Layout
    first: int
    late: int | None


def plan_late(
    plan: Plan, schedule: Schedule, recomputed: Collection[int], places: Mapping[int, int]
) -> Mapping[int, LateGradient]:
    """The late gradients of a plan's schedule, by position. ``recomputed``: the steps that the
    backward pass repeats. ``places``: the position of each step."""
    has_pass = plan.pipeline is not None and plan.pipeline.has_weights_pass
    gradients = late_gradients(schedule, recomputed, places, has_weights_pass=has_pass)
    return {places[number]: gradient.at(places) for number, gradient in gradients.items()}


def homes_of(
    schedule: Schedule,
    places: Mapping[int, int],
    register: Callable[[Slot], str],
    late: Mapping[int, LateGradient],
) -> tuple[WeightHome, ...]:
    """The homes of all weights, ordered by name. ``places``: the position of each step. ``late``:
    the late gradients, by position."""
    first: dict[Slot, int] = {}
    for number, place in sorted(places.items(), key=lambda item: item[1]):
        for slot in schedule.steps[number].operands:
            first.setdefault(slot, place)
    nodes = sorted(schedule.homes, key=lambda node: node.leaf.name)
    slots = [Slot(node.value(), schedule.homes[node]) for node in nodes]
    beside = {
        schedule.steps[number].operands[late[place].operand]: late[place].beside
        for number, place in places.items()
        if place in late
    }
    return tuple(
        WeightHome(
            register(slot), slot.value.node.leaf, slot.layout, first.get(slot, 0), beside.get(slot)
        )
        for slot in slots
    )


def weights_on(homes: Iterable[WeightHome], rank: int) -> Iterator[Weight]:
    """The blocks of weights that a rank stores."""
    for name, leaf, layout, first, late in homes:
        piece = layout.by_device.get(rank)
        if piece is not None:
            yield Weight(name, leaf, layout.regions[rank], layout.holders[piece], first, late)
