"""Give operators the masks that they read, drawn for each of them.

In the place of such a mask stands the key that it is drawn with. An operator that multiplies by the
mask gets it as bools, of which autograd saves one byte an element; others get it as numbers.
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
    """``compute`` of an instruction on operands of which some are keys of ``masks``, by register.
    ``shapes``: those of registers; ``dtype``: the format of masks that are read as numbers."""
    masked = [(i, masks[name]) for i, name in enumerate(instruction.operands) if name in masks]
    if not masked:
        return compute
    alone = multiplied(instruction.call, [name in masks for name in instruction.operands])

    def run(blocks: Sequence[Tensor]) -> tuple[Tensor, ...]:
        given = list(blocks)
        for i, leaf in masked:
            extent = shapes[instruction.operands[i]]
            mask = drawn_mask(leaf, instruction.starts[i], extent, given[i])
            given[i] = mask if i == alone else mask.to(dtype)
        return compute(given)

    return run
