"""Run a task of an operator in torch, by its kernel or by its equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pcg.language.functions import FUNCTIONS
from pcg.readings.evaluate import Block, evaluate_output
from pcg.readings.ring import IndexArray
from pcg.types.infer import index_sizes
from pcg.types.operator import Attribute, Call
from pcg.types.task import KernelTask
from pcg.types.tensor import ParallelTensor
from runtime.execute.pointwise import pointwise


@dataclass(frozen=True)
class TorchReals:
    """Real numbers as torch tensors of one floating-point type, differentiable by autograd.

    It satisfies ``pcg.readings.ring.Ring``. Indices are numpy arrays, which are converted to
    tensors when elements are read.
    """

    dtype: torch.dtype
    device: torch.device

    def constant(self, value: Fraction) -> Tensor:
        return self._number(float(value))

    def real(self, value: Attribute) -> Tensor:
        assert isinstance(value, (int, float)), "lowering leaves no symbols"
        return self._number(float(value))

    def numbers(self, values: IndexArray) -> Tensor:
        return self._moved(values).to(self.dtype)

    def gather(
        self, block: Tensor, index: Sequence[IndexArray], valid: NDArray[np.bool_]
    ) -> Tensor:
        at = tuple(self._moved(i) for i in index)
        return torch.where(self._moved(valid), block.to(self.dtype)[at], 0.0)

    def take(self, block: Tensor, cut: tuple[slice, ...], order: tuple[int, ...]) -> Tensor:
        return block[cut].permute(order).to(self.dtype)

    def plus(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def chosen(self, values: Tensor, held: NDArray[np.bool_]) -> Tensor:
        return torch.where(self._moved(held), values, 0.0)

    def total(self, values: Tensor, axis: int) -> Tensor:
        return values.sum(dim=axis)

    def greatest(self, values: Tensor, axis: int, valid: NDArray[np.bool_]) -> Tensor:
        if not values.shape[axis]:
            return values.new_full(values.sum(dim=axis).shape, float("-inf"))
        return torch.where(self._moved(valid), values, float("-inf")).amax(dim=axis)

    def apply(self, function: str, args: Sequence[Tensor]) -> Tensor:
        return FUNCTIONS[function].kernel(*args).to(self.dtype)

    def expand(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        return values.expand(shape)

    def zeros(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def concatenate(self, arrays: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(arrays))

    def _number(self, value: float) -> Tensor:
        return torch.full((), value, dtype=self.dtype, device=self.device)

    def _moved(self, values: NDArray[Any]) -> Tensor:
        """An array on the device. The host does not wait for the device."""
        return torch.tensor(values).to(self.device, non_blocking=True)


BlockFunction = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
"""The output blocks of a task from its operands' blocks."""


def prepare(call: Call, task: KernelTask, starts: Sequence[tuple[int, ...]]) -> BlockFunction:
    """A function that runs a task on its operands' blocks, which begin at ``starts``: by the kernel
    of the operator, by torch functions of whole blocks if the equation is element-wise, or by
    evaluating the equation."""
    kernel = call.operator.kernel
    if kernel is not None:
        placed = replace(task, starts=tuple(starts))

        def run_kernel(blocks: Sequence[Tensor]) -> tuple[Tensor, ...]:
            result = kernel(placed, *blocks)
            return result if isinstance(result, tuple) else (result,)

        return run_kernel
    function = pointwise(call, tuple(len(start) for start in starts))
    if function is not None:
        return lambda blocks: (function(blocks),)
    return lambda blocks: run_equation(call, task, blocks, starts)


def run_task(
    call: Call, task: KernelTask, blocks: Sequence[Tensor], starts: Sequence[tuple[int, ...]]
) -> tuple[Tensor, ...]:
    """The output blocks of a task from its operands' blocks, which begin at ``starts``."""
    return prepare(call, task, starts)(blocks)


def run_equation(
    call: Call, task: KernelTask, blocks: Sequence[Tensor], starts: Sequence[tuple[int, ...]]
) -> tuple[Tensor, ...]:
    """The output blocks of a task by the operator's equation, without its kernel. The first operand
    sets dtype and device. An operator without operands has torch's defaults."""
    equation = call.instance(tuple(block.dim() for block in blocks))
    sizes = {f"|{name}|": size for name, size in task.sizes.items()}
    sizes |= {name: call.integer(name) for name in call.operator.sizes}
    like = blocks[0] if blocks else torch.empty(0)
    ring = TorchReals(like.dtype, like.device)
    operands = [Block(block, start) for block, start in zip(blocks, starts, strict=True)]
    return tuple(
        evaluate_output(output, operands, sizes, task.ranges, call.attributes, ring)
        for output in equation.outputs
    )


def whole_task(call: Call, shapes: Sequence[tuple[int, ...]]) -> KernelTask:
    """The single task of an operator that is not cut, on operands of these shapes."""
    return KernelTask(call.values, index_sizes(call, [ParallelTensor.whole(s) for s in shapes]), {})


def run_whole(call: Call, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run an operator on whole tensors."""
    task = whole_task(call, [tuple(tensor.shape) for tensor in tensors])
    return run_task(call, task, tensors, [(0,) * tensor.dim() for tensor in tensors])
