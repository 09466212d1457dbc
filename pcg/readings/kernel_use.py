"""What of an operator is a kernel, as ``pcg.readings.kernels`` finds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelUse:
    """What of an operator's work is a kernel, and what that kernel reads and writes; see
    ``pcg.readings.kernels``."""

    launches: bool = True
    """Whether there is a kernel forward."""
    given: frozenset[int] = frozenset()
    """Operands, by position, that no memory is read for forward."""
    is_written: bool = True
    """Whether the results are written to memory forward."""
    as_is: frozenset[int] = frozenset()
    """Operands whose gradient is that of the result, so that nothing computes it."""
    drawn: frozenset[int] = frozenset()
    """Operands that are drawn: one byte an element tells what they make of the others."""
    passed: frozenset[int] = frozenset()
    """Operands whose gradients are read by the same kernel that computes them."""
    joined: bool = False
    """Whether the backward pass is part of the reader's kernel."""


APART = KernelUse()
"""A kernel of its own that reads all operands and writes all results."""
