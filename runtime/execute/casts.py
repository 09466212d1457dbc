"""Run operators in the formats of a step with two: what is wide is computed in the wide one.

``pcg.readings.formats`` says which values are wide. An operator with a wide result is computed in
the wide format; a product of matrices with a narrow one in the narrow format, as are torch's own
functions of single elements. Other functions of torch, which may know no narrow format, are
computed in the wide one. What is left has operands of either format, as torch promotes them. Each
result is brought into its own format.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from pcg.graph.opaque import Elementwise, TorchFunction
from pcg.readings.kind import call_kind
from runtime.execute.kernels import BlockFunction
from runtime.execute.precision import RunFormats
from runtime.program.program import Run


def in_formats(
    instruction: Run, compute: BlockFunction, wide: Collection[str], formats: RunFormats
) -> BlockFunction:
    """``compute`` of an instruction, in the formats of a run. ``wide``: the registers that are."""
    makes = [formats.wide if name in wide else formats.narrow for name in instruction.results]
    given = _format_of_operands(instruction, formats, is_wide=formats.wide in makes)

    def run(blocks: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if given is not None:
            # A mask stays a byte an element.
            blocks = [b if b.dtype is torch.bool else b.to(given) for b in blocks]
        return tuple(made.to(own) for made, own in zip(compute(blocks), makes, strict=True))

    return run


def _format_of_operands(
    instruction: Run, formats: RunFormats, *, is_wide: bool
) -> torch.dtype | None:
    """The format in which an instruction computes; None where that is what torch promotes to."""
    call = instruction.call
    if is_wide:
        return formats.wide
    if call_kind(call, tuple(len(start) for start in instruction.starts)) == "contraction":
        return formats.narrow
    if isinstance(call.operator, TorchFunction) and not isinstance(call.operator, Elementwise):
        return formats.wide
    return None


class _Narrowed(Function):
    """A weight, of which a copy in the narrow format is at hand; its gradient is wide."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.wide = weight.dtype
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient.to(ctx.wide), None


def narrowed(weight: Tensor, copy: Tensor) -> Tensor:
    """The copy of a weight in the narrow format, whose gradients go to the weight."""
    made = _Narrowed.apply(weight, copy)
    assert isinstance(made, Tensor)
    return made
