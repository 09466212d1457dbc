"""Checks of values that only raise an error, such as an assert of finite numbers.

Problem: no graph can follow a choice by values, but a check that passes chooses nothing. Method:
when the truth of a tensor is asked for, the bytecode of the caller tells what follows. If one
branch leads straight to an error, the answer is the other branch, and the line is noted. A branch
that jumps or returns before it raises, or whose error has a handler in the function, is not such
a branch. So the graph is the module's as long as its checks pass; where one would raise, the plan
goes on.
"""

from __future__ import annotations

import dis
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType

RAISES = ("RAISE_VARARGS",)
LEAVES = ("RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE", "RERAISE", "SEND")
PASSES = "is a check that raises an error, and is taken to pass"


@dataclass
class Checks:
    """The checks that were met, by place."""

    places: list[str] = field(default_factory=list[str])

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each place."""
        return tuple(f"{place} {PASSES}" for place in dict.fromkeys(self.places))

    def answer(self, frame: FrameType | None) -> bool | None:
        """What lets the check pass that a frame asks for; None if it is none."""
        if frame is None:
            return None
        made = passing(frame.f_code, frame.f_lasti)
        if made is not None:
            self.places.append(f"{frame.f_code.co_filename}: line {frame.f_lineno}:")
        return made


def passing(code: CodeType, offset: int) -> bool | None:
    """The truth with which a jump at an offset of a function does not lead straight to an error;
    None where neither or both ways do, or it is no jump."""
    steps = list(dis.get_instructions(code))
    at = next((i for i, step in enumerate(steps) if step.offset == offset), len(steps))
    if at < len(steps) and steps[at].opname == "TO_BOOL":  # from Python 3.13 on
        at += 1
    name = steps[at].opname if at < len(steps) else ""
    if "JUMP" not in name or not ("IF_TRUE" in name or "IF_FALSE" in name):
        return None
    target = next((i for i, s in enumerate(steps) if s.offset == steps[at].argval), len(steps))
    stays, jumps = (_raises(code, steps, i) for i in (at + 1, target))
    if stays == jumps:
        return None
    jumps_if = "IF_TRUE" in name
    return jumps_if if stays else not jumps_if


def _raises(code: CodeType, steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether all that is done from a step on is to raise an error that the function lets go."""
    for step in steps[at:]:
        if step.opname in RAISES:
            return not _is_watched(code, step.offset)
        if "JUMP" in step.opname or step.opname in LEAVES:
            return False
    return False


def _is_watched(code: CodeType, offset: int) -> bool:
    """Whether an error at an offset has a handler in its function."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return any(entry.start <= offset < entry.end for entry in table)
