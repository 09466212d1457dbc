"""Dropout masks that are drawn where they are read, and their memory.

A dropout mask is an input of the graph (``Leaf.share``) that no device has to hold: the operator
that reads it draws it, and draws it again if it is recomputed. An operator that multiplies by it
keeps one byte per element, which is all that its backward pass reads. A mask that is moved between
devices, joined with other tensors, or returned, is held like other data, during the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence

from pcg.graph.graph import Value
from pcg.types.operator import Call

MASKED = {"dropout": (1,), "multiply": (0, 1)}
"""Operators that multiply by masks, with the operands that may be one."""


def is_mask(value: Value) -> bool:
    """Whether a value is a drawn mask."""
    return value.node.is_leaf and value.node.leaf.share is not None


def multiplied(call: Call, masks: Sequence[bool]) -> int | None:
    """Return the operand that is the mask to multiply by, or None unless there is exactly one.
    ``masks`` says for each operand whether it is a mask."""
    of = [i for i in MASKED.get(call.name, ()) if masks[i]]
    return of[0] if len(of) == 1 == sum(masks) else None
