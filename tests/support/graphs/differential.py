"""An operator against a function of torch: its equation and its kernel, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pcg.types.operator import Call
from runtime.execute.kernels import run_equation, run_whole, whole_task

NEAR = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 4e-2}
"""Tolerance of the results in each format, relative to the greatest of them."""


def assert_means(
    call: Call,
    operands: Sequence[Tensor],
    theirs: Callable[..., Any],
    dtype: torch.dtype = torch.float64,
) -> None:
    """Check that the equation in double precision gives the values of ``theirs``, and the kernel
    too, in ``dtype``. The gradients for a random gradient of the result are compared as well.
    Integer operands stand for ids and have no gradients."""
    shapes = [tuple(x.shape) for x in operands]
    task, starts = whole_task(call, shapes), [(0,) * x.dim() for x in operands]
    wanted = with_gradients(lambda *x: theirs(*x), operands, torch.float64)
    equation = with_gradients(
        lambda *x: run_equation(call, task, x, starts)[0], operands, torch.float64
    )
    kernel = with_gradients(lambda *x: run_whole(call, x)[0], operands, dtype)
    for a, b, c in zip(wanted, equation, kernel, strict=True):
        assert a.shape == b.shape == c.shape
        assert c.dtype == dtype
        scale = max(1.0, float(a.abs().nan_to_num(posinf=0.0).max()))
        compare(b, a, scale, torch.float64)
        compare(c, a, scale, dtype)


def compare(ours: Tensor, theirs: Tensor, scale: float, dtype: torch.dtype) -> None:
    near = NEAR[dtype]
    torch.testing.assert_close(
        ours.double() / scale, theirs / scale, rtol=near, atol=near, equal_nan=True
    )


def with_gradients(
    function: Callable[..., Tensor], operands: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """The result, and the gradient of each operand of real numbers."""
    given = [x.detach().to(dtype).requires_grad_(x.dtype.is_floating_point) for x in operands]
    result = function(*given)
    wanted = [x for x in given if x.requires_grad]
    weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    return [result.detach(), *torch.autograd.grad(result, wanted, weight.to(result.dtype))]
