"""Fuse operators of a segment for which torch has one kernel.

A linear layer with a bias comes out of a model as three operators: the product, the bias repeated
along all axes but the last, and their sum. Where nothing else reads the first two, they are one
call, in which the sum is no pass over memory of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor
from torch.nn.functional import linear as torch_linear

from pcg.ops.algebra import add, matmul
from pcg.ops.reindexing import expand_vector
from pcg.types.operator import Operator
from pcg.types.task import KernelTask
from runtime.program.program import Local, Run, sources


def _linear(task: KernelTask, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch_linear(x, w.t(), b)


LINEAR = Operator("linear", "out[a..., n] = (sum k: x[a..., k] * w[k, n]) + b[n]", kernel=_linear)
"""A product with a bias."""


def fused(instructions: Sequence[Local], later: Iterable[str]) -> tuple[Local, ...]:
    """The instructions with products and their biases as one. ``later``: registers that are read
    after all of them, and so have to be made."""
    readers = Counter(later)
    makers: dict[str, Run] = {}
    for instruction in instructions:
        readers.update(sources(instruction))
        if isinstance(instruction, Run) and not instruction.recomputed:
            makers.update(dict.fromkeys(instruction.results, instruction))
    made: dict[int, Run] = {}
    gone: set[int] = set()
    for instruction in makers.values():
        parts = _parts(instruction, makers, readers)
        if parts is not None:
            product, bias = parts
            made[id(instruction)] = _together(product, bias, instruction)
            gone |= {id(product), id(bias)}
    return tuple(made.get(id(i), i) for i in instructions if id(i) not in gone)


def _parts(total: Run, makers: dict[str, Run], readers: Counter[str]) -> tuple[Run, Run] | None:
    """The product and the repeated bias that an operator adds up, if it does and nothing else
    reads them."""
    if total.call.operator != add:
        return None
    for first, second in (total.operands, total.operands[::-1]):
        product, bias = makers.get(first), makers.get(second)
        if product is None or bias is None:
            continue
        if product.call.operator != matmul or not _is_bias(bias):
            continue
        # The repeated bias reads the product too, for its shape, unless another gave that.
        uses = 1 + (bias.operands[0] == first)
        if readers[first] == uses and readers[second] == 1:
            return product, bias
    return None


def _is_bias(run: Run) -> bool:
    """Whether it repeats a vector along all axes but the last."""
    last = len(run.starts[0]) - 1
    return run.call.operator == expand_vector and run.call.integer("axis") == last


def _together(product: Run, bias: Run, total: Run) -> Run:
    starts = (*product.starts, bias.starts[1])
    operands = (*product.operands, bias.operands[1])
    made = replace(total, call=LINEAR(), task=product.task, starts=starts, operands=operands)
    return replace(made, late=product.late)
