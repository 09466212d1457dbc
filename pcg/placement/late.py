"""The products of a schedule whose weight gradients are computed late.

Meaning. A product with a weight at home that nothing else reads has two gradients. That of the
other operand comes first, and that of the weight right after it (``pcg.readings.late``). So the
first is communicated while the second is computed, and the tensors that both read are held until
then. Recomputed steps compute both gradients at once. If micro-batches have a pass for weights
(ZB-H1, ``pcg.plan.pipeline``), the weight gradients of all such products of slices come in that
pass, and the tensors that they read are held until then. Complexity: linear in the steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from pcg.placement.backward import gradients
from pcg.placement.schedule import Compute, Reshard, Schedule, Slot
from pcg.readings.late import has_separate_gradients

WEIGHTS_PASS = 0
"""In the place of a communication step: the gradient comes in the pass for weights, after the
backward pass of all slices. Step 0 is a load, so the number is free."""


class LateGradient(NamedTuple):
    """A gradient that is computed during the communication of another gradient, or in the pass for
    weights."""

    operand: int
    """The weight, by its position among the operands."""
    beside: int
    """The communication, by the number of its step or, in a program, by its position; or
    ``WEIGHTS_PASS``."""

    @property
    def in_weights_pass(self) -> bool:
        """Whether the gradient comes in the pass for weights."""
        return self.beside == WEIGHTS_PASS

    def at(self, places: Mapping[int, int]) -> LateGradient:
        """Return the same with the position of the communication, given those of all steps."""
        return self if self.in_weights_pass else self._replace(beside=places[self.beside])


def late_steps(schedule: Schedule, recomputed: Collection[int] = ()) -> Mapping[int, int]:
    """Return the operand with a late gradient, by step number. ``recomputed`` are the steps that
    are computed again in the backward pass."""
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
        if alone and has_separate_gradients(step.node, needs):
            late_of[number] = weights[0]
    return late_of


def late_gradients(
    schedule: Schedule,
    recomputed: Collection[int] = (),
    places: Mapping[int, int] | None = None,
    *,
    has_weights_pass: bool = False,
) -> Mapping[int, LateGradient]:
    """Return the late gradients, by step number, of products whose other operand was communicated.

    Each is computed beside the next communication of the backward pass. ``places`` are the
    positions of steps, if these differ from the order of the schedule. If ``has_weights_pass``,
    all late gradients of slices come in the pass for weights.
    """
    sent = {
        number if places is None else places[number]: number
        for number, step in enumerate(schedule.steps)
        if isinstance(step, Reshard) and step.transfer.kind not in ("none", "local")
    }
    communicated = {slot for number in sent.values() for slot in schedule.steps[number].results}
    order = sorted(sent)
    late_of: dict[int, LateGradient] = {}
    for number, operand in late_steps(schedule, recomputed).items():
        if has_weights_pass and schedule.steps[number].results[0].layout.one_slice is not None:
            late_of[number] = LateGradient(operand, WEIGHTS_PASS)
            continue
        before = bisect_left(order, number if places is None else places[number])
        if before and schedule.steps[number].operands[1 - operand] in communicated:
            late_of[number] = LateGradient(operand, sent[order[before - 1]])
    return late_of
