"""Fuse operators of a segment for which torch has one kernel.

A linear layer with a bias is captured as three operators: the product, the bias repeated along all
axes but the last, and their sum. If nothing else reads the first two results, a single call
replaces the three operators. It needs no separate pass over memory for the sum.

A look-up yields zeros for an id that names no row of its block. If all ids are rows of the block,
because they are an input with such bounds, torch's own look-up replaces it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor
from torch.nn.functional import embedding as torch_embedding
from torch.nn.functional import linear as torch_linear

from pcg.graph.graph import Leaf
from pcg.ops.algebra import add, matmul
from pcg.ops.layers import embedding
from pcg.ops.reindexing import expand_vector
from pcg.types.operator import Operator
from pcg.types.task import KernelTask
from runtime.program.program import Local, Run, sources


def _linear(task: KernelTask, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch_linear(x, w.t(), b)


LINEAR = Operator("linear", "out[a..., n] = (sum k: x[a..., k] * w[k, n]) + b[n]", kernel=_linear)
"""A product with a bias."""


def _lookup(task: KernelTask, ids: Tensor, table: Tensor) -> Tensor:
    return torch_embedding(ids.long(), table)


LOOKUP = replace(embedding, name="lookup", kernel=_lookup)
"""An embedding all of whose ids are rows of its block of the table."""


def looked_up(instruction: Local, inputs: Mapping[str, Leaf]) -> Local:
    """The instruction, or torch's own look-up in its place. ``inputs``: the inputs of the step, by
    register. Their elements have been checked to lie within the bounds of the leaf."""
    if not isinstance(instruction, Run) or instruction.call.operator != embedding:
        return instruction
    leaf, rows = inputs.get(instruction.operands[0]), instruction.task.length("v")
    if leaf is None or leaf.below is None or leaf.least < 0 or leaf.below > rows:
        return instruction
    if instruction.task.start("v"):
        return instruction
    return replace(instruction, call=replace(instruction.call, operator=LOOKUP))


def fused(instructions: Sequence[Local], later: Iterable[str]) -> tuple[Local, ...]:
    """The instructions, with each product and its bias fused. ``later``: the registers that are
    read after the instructions, so that they must be computed."""
    readers = Counter(later)
    makers: dict[str, Run] = {}
    for instruction in instructions:
        readers.update(sources(instruction))
        if isinstance(instruction, Run) and not instruction.recomputed:
            makers.update(dict.fromkeys(instruction.results, instruction))
    replacements: dict[int, Run] = {}
    removed: set[int] = set()
    for instruction in makers.values():
        parts = _parts(instruction, makers, readers)
        if parts is not None:
            product, bias = parts
            replacements[id(instruction)] = _together(product, bias, instruction)
            removed |= {id(product), id(bias)}
    return tuple(replacements.get(id(i), i) for i in instructions if id(i) not in removed)


def _parts(total: Run, makers: dict[str, Run], readers: Counter[str]) -> tuple[Run, Run] | None:
    """The product and the repeated bias that an operator adds. None if it does not add such, or
    another operator reads one of them."""
    if total.call.operator != add:
        return None
    for first, second in (total.operands, total.operands[::-1]):
        product, bias = makers.get(first), makers.get(second)
        if product is None or bias is None:
            continue
        if product.call.operator != matmul or not _is_bias(bias):
            continue
        # The repeated bias may read the product, too, for its shape.
        uses = 1 + (bias.operands[0] == first)
        if readers[first] == uses and readers[second] == 1:
            return product, bias
    return None


def _is_bias(run: Run) -> bool:
    """Whether an operator repeats a vector along all axes but the last."""
    last = len(run.starts[0]) - 1
    return run.call.operator == expand_vector and run.call.integer("axis") == last


def _together(product: Run, bias: Run, total: Run) -> Run:
    starts = (*product.starts, bias.starts[1])
    operands = (*product.operands, bias.operands[1])
    call = replace(total, call=LINEAR(), task=product.task, starts=starts, operands=operands)
    return replace(call, late=product.late)
