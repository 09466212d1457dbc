"""The kernels of an operator, as ``pcg.readings.kernels`` determines them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelUse:
    """The part of an operator's work that is a kernel, and the memory that the kernel reads and
    writes (``pcg.readings.kernels``)."""

    launches: bool = True
    """Whether a kernel is launched in the forward pass."""
    unread: frozenset[int] = frozenset()
    """Operands, by position, that are not read from memory in the forward pass."""
    is_written: bool = True
    """Whether the results are written to memory in the forward pass."""
    as_is: frozenset[int] = frozenset()
    """Operands whose gradient is equal to that of the result, so that no kernel computes it."""
    drawn: frozenset[int] = frozenset()
    """Operands that are drawn. One byte per element records their effect on the others."""
    fused_gradients: frozenset[int] = frozenset()
    """Operands whose gradients are read by the same kernel that computes them."""
    backward_fused: bool = False
    """Whether the backward pass is a part of the reader's kernel."""


SEPARATE = KernelUse()
"""A separate kernel that reads all operands and writes all results."""
