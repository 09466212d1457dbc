"""Draw the masks that operators read, anew for each operator.

The register of such a mask holds the key from which it is drawn. An operator that multiplies by the
mask gets it as bools, so that autograd saves one byte per element. Other operators get it as
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pcg.graph.graph import Leaf
from pcg.readings.masks import multiplied
from runtime.execute.kernels import BlockFunction
from runtime.inputs.masks import drawn_mask
from runtime.program.program import Run


def with_masks(
    compute: BlockFunction,
    instruction: Run,
    masks: Mapping[str, Leaf],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
) -> BlockFunction:
    """The function ``compute`` of an instruction, for operands of which some are keys of masks.

    ``masks``: the leaves of masks, by register. ``shapes``: those of registers. ``dtype``: the
    format of masks that are read as numbers.
    """
    masked = [(i, masks[name]) for i, name in enumerate(instruction.operands) if name in masks]
    if not masked:
        return compute
    factor = multiplied(instruction.call, [name in masks for name in instruction.operands])

    def run(blocks: Sequence[Tensor]) -> tuple[Tensor, ...]:
        operands = list(blocks)
        for i, leaf in masked:
            extent = shapes[instruction.operands[i]]
            mask = drawn_mask(leaf, instruction.starts[i], extent, operands[i])
            operands[i] = mask if i == factor else mask.to(dtype)
        return compute(operands)

    return run
