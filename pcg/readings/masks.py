"""Masks that are drawn where they are read, and what they take while they are held.

A mask of dropout is an input of the graph (``Leaf.share``) that nobody has to hold: an operator
draws what it reads, and again whenever it is recomputed. Multiplied by, it is a byte an element,
and all that the backward pass reads. A mask that is moved between devices, joined with other
tensors, or an output, is data like all other, there for the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence

from pcg.graph.graph import Value
from pcg.types.operator import Call

MASKED = {"dropout": (1,), "multiply": (0, 1)}
"""By operator that multiplies by masks, the operands that may be one."""


def is_mask(value: Value) -> bool:
    """Whether a value is a mask that is drawn."""
    return value.node.is_leaf and value.node.leaf.share is not None


def multiplied(call: Call, masks: Sequence[bool]) -> int | None:
    """The operand that is a mask to multiply by; None where there is no such, or not just one.
    ``masks``: by operand, whether it is a mask."""
    of = [i for i in MASKED.get(call.name, ()) if masks[i]]
    return of[0] if len(of) == 1 == sum(masks) else None
