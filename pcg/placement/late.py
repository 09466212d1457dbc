"""The products of a schedule that leave the gradient of their weight for later.

Meaning. Of a product with a weight where it is kept, which nothing else reads, the gradient of the
other operand comes first, and that of the weight right after it (``pcg.readings.late``). So what
is sent of the first is under way while the second is computed, and what both are made of is held
until then. What is recomputed is gone back through at once. Where micro-batches have a pass for
weights alone (ZB-H1, ``pcg.plan.pipeline``), the gradients of all such products of slices come in
that pass, and what they are made of is held until then. Complexity: linear in the steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from pcg.placement.backward import gradients
from pcg.placement.schedule import Compute, Reshard, Schedule, Slot
from pcg.readings.late import parts_gradients

WEIGHTS_PASS = 0
"""In the place of a communication: that a gradient comes in the pass for weights, which is after
the backward pass of all steps of slices. What is there first is a load."""


class LateGradient(NamedTuple):
    """A gradient that is computed while communication of another is under way, or in the pass for
    weights."""

    operand: int
    """The weight, by position."""
    beside: int
    """That communication, by the number of its step; in a program, by its position; or
    ``WEIGHTS_PASS``."""

    @property
    def in_weights_pass(self) -> bool:
        """Whether it comes in a pass of its own, for weights."""
        return self.beside == WEIGHTS_PASS

    def at(self, places: Mapping[int, int]) -> LateGradient:
        """The same with the position of the communication, by those of the steps."""
        return self if self.in_weights_pass else self._replace(beside=places[self.beside])


def late_steps(schedule: Schedule, recomputed: Collection[int] = ()) -> Mapping[int, int]:
    """By number of a step, the operand whose gradient comes late. ``recomputed``: the steps that
    are done again in the backward pass."""
    passed = gradients(schedule)
    homes = {Slot(node.value(), schedule.homes[node]) for node in passed.weights}
    readers: Counter[Slot] = Counter()
    for step, needs in zip(schedule.steps, passed.steps, strict=True):
        if needs is not None:
            readers.update(homes.intersection(step.operands))
    late_of: dict[int, int] = {}
    for number, (step, needs) in enumerate(zip(schedule.steps, passed.steps, strict=True)):
        if not isinstance(step, Compute) or needs is None or number in recomputed:
            continue
        weights = [i for i, slot in enumerate(step.operands) if slot in homes]
        alone = len(weights) == 1 and readers[step.operands[weights[0]]] == 1
        if alone and parts_gradients(step.node, needs):
            late_of[number] = weights[0]
    return late_of


def late_gradients(
    schedule: Schedule,
    recomputed: Collection[int] = (),
    places: Mapping[int, int] | None = None,
    *,
    has_weights_pass: bool = False,
) -> Mapping[int, LateGradient]:
    """By number of a step, those of products whose other operand was communicated. Beside it is
    what communicates next in the backward pass. ``places``: where each step stands, where that is
    in another order than the schedule has. ``has_weights_pass``: whether slices have one, in which
    all late gradients of slices come."""
    sent = {
        number if places is None else places[number]: number
        for number, step in enumerate(schedule.steps)
        if isinstance(step, Reshard) and step.transfer.kind not in ("none", "local")
    }
    came = {slot for number in sent.values() for slot in schedule.steps[number].results}
    order = sorted(sent)
    late_of: dict[int, LateGradient] = {}
    for number, operand in late_steps(schedule, recomputed).items():
        if has_weights_pass and schedule.steps[number].results[0].layout.one_slice is not None:
            late_of[number] = LateGradient(operand, WEIGHTS_PASS)
            continue
        before = bisect_left(order, number if places is None else places[number])
        if before and schedule.steps[number].operands[1 - operand] in came:
            late_of[number] = LateGradient(operand, sent[order[before - 1]])
    return late_of
