"""Choose the number format in which each operator of a mixed-precision step computes.

``pcg.readings.formats`` says which values are wide. An operator with a wide result computes in the
wide format. A matrix product with a narrow result computes in the narrow format. A torch function
without an equation, which may have no kernel for the narrow format, computes in the wide one,
unless it is element-wise. All other operators get their operands as they are, and torch's type
promotion applies. Each result is converted to its own format.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from pcg.graph.opaque import Elementwise, TorchFunction
from pcg.readings.kind import call_kind
from runtime.execute.kernels import BlockFunction
from runtime.execute.precision import RunFormats
from runtime.program.program import Run


def in_formats(
    instruction: Run, compute: BlockFunction, wide: Collection[str], formats: RunFormats
) -> BlockFunction:
    """The function ``compute`` of an instruction, with operands and results in the formats of the
    run. ``wide``: the registers that are wide."""
    result_types = [formats.wide if r in wide else formats.narrow for r in instruction.results]
    operand_type = _format_of_operands(instruction, formats, is_wide=formats.wide in result_types)

    def run(blocks: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if operand_type is not None:
            # A mask of bools stays one byte per element.
            blocks = [
                b if b.dtype is operand_type or b.dtype is torch.bool else b.to(operand_type)
                for b in blocks
            ]
        results = compute(blocks)
        return tuple(
            [
                result if result.dtype is dtype else result.to(dtype)
                for result, dtype in zip(results, result_types, strict=True)
            ]
        )

    return run


def _format_of_operands(
    instruction: Run, formats: RunFormats, *, is_wide: bool
) -> torch.dtype | None:
    """The format in which an instruction computes. None if torch's type promotion decides."""
    call = instruction.call
    if is_wide:
        return formats.wide
    if call_kind(call, tuple(len(start) for start in instruction.starts)) == "contraction":
        return formats.narrow
    if isinstance(call.operator, TorchFunction) and not isinstance(call.operator, Elementwise):
        return formats.wide
    return None
