"""Beside which communication of the backward pass the gradients of weights are computed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping

from pcg.placement.late import late_steps
from pcg.placement.schedule import Reshard, Schedule, Slot
from runtime.program.program import LateGradient


def late_gradients(
    schedule: Schedule, places: Mapping[int, int], recomputed: Collection[int]
) -> Mapping[int, LateGradient]:
    """By position, those of products whose other operand was communicated: its gradient is sent
    back next, and the weight's computed meanwhile. ``places``: the position of each step;
    ``recomputed``: the steps that are done again."""
    moves = {
        number: step
        for number, step in enumerate(schedule.steps)
        if isinstance(step, Reshard) and step.transfer.kind not in ("none", "local")
    }
    came: set[Slot] = {step.target for step in moves.values()}
    sent = sorted(places[number] for number in moves)
    found: dict[int, LateGradient] = {}
    for number, operand in late_steps(schedule, recomputed).items():
        other = schedule.steps[number].operands[1 - operand]
        before = bisect_left(sent, places[number])
        if other in came and before:
            found[places[number]] = LateGradient(operand, sent[before - 1])
    return found
