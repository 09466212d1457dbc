"""The products of a schedule that leave the gradient of their weight for later.

Meaning. Of a product with a weight where it is kept, which nothing else reads, the gradient of the
other operand comes first, and that of the weight right after it (``pcg.readings.late``). So what
is sent of the first is under way while the second is computed. What is recomputed is gone back
through at once. Search and runtime both ask here, or find the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from pcg.placement.backward import gradients
from pcg.placement.schedule import Compute, Schedule, Slot
from pcg.readings.late import parts_gradients


def late_steps(schedule: Schedule, recomputed: Collection[int] = ()) -> Mapping[int, int]:
    """By number of a step, the operand whose gradient comes late. ``recomputed``: the steps that
    are done again in the backward pass."""
    passed = gradients(schedule)
    homes = {Slot(node.value(), schedule.homes[node]) for node in passed.weights}
    readers: Counter[Slot] = Counter()
    for step, needs in zip(schedule.steps, passed.steps, strict=True):
        if needs is not None:
            readers.update(homes.intersection(step.operands))
    found: dict[int, int] = {}
    for number, (step, needs) in enumerate(zip(schedule.steps, passed.steps, strict=True)):
        if not isinstance(step, Compute) or needs is None or number in recomputed:
            continue
        weights = [i for i, slot in enumerate(step.operands) if slot in homes]
        alone = len(weights) == 1 and readers[step.operands[weights[0]]] == 1
        if alone and parts_gradients(step.node, needs):
            found[number] = weights[0]
    return found
