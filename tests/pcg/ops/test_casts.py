"""Casts round every number as torch does, and keep torch's formats."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pcg.ops import OPERATORS
from pcg.readings.evaluate import evaluate_call
from pcg.readings.ring import Reals
from runtime.execute.kernels import run_equation, run_whole, whole_task

FORMATS = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}


def edge_cases() -> torch.Tensor:
    """Numbers of all magnitudes, halfway between two numbers of a format, and beyond its range."""
    generator = torch.Generator().manual_seed(0)
    size = 4000
    random = torch.randn(size, generator=generator, dtype=torch.float64)
    random *= 10.0 ** torch.randint(-45, 45, (size,), generator=generator)
    ties = [s * (1 + n * 2.0**-bits) for s in (1, -1) for bits in (8, 9, 11, 12, 24, 25)
            for n in range(8)]  # fmt: skip
    ties += [1 + 2.0**-bits + 2.0**-40 for bits in (8, 11)]  # float32 takes these for ties
    special = [0.0, -0.0, 65504.0, 65519.9, 65520.0, 3.3e38, 3.39e38, 3.5e38, 1e-8, 6e-8, 1e-45]
    special += [float("inf"), float("-inf"), float("nan")]
    return torch.cat((random, torch.tensor(ties + special, dtype=torch.float64)))


@pytest.mark.parametrize("name", FORMATS)
def test_numpy_rounds_as_torch(name: str):
    x = edge_cases()
    wanted = x.to(FORMATS[name]).double()
    (ours,) = evaluate_call(OPERATORS[f"to_{name}"](), [x.numpy()], Reals())
    np.testing.assert_array_equal(ours, wanted.numpy())
    scalar = x[0]
    (ours,) = evaluate_call(OPERATORS[f"to_{name}"](), [scalar.numpy()], Reals())
    assert float(ours) == float(scalar.to(FORMATS[name]))


@pytest.mark.parametrize("name", FORMATS)
def test_the_kernel_changes_the_format_and_the_equation_only_the_number(name: str):
    x = edge_cases()
    call = OPERATORS[f"to_{name}"]()
    (kernel,) = run_whole(call, [x])
    (equation,) = run_equation(call, whole_task(call, [tuple(x.shape)]), [x], [(0,)])
    assert kernel.dtype == FORMATS[name]
    assert equation.dtype == torch.float64
    torch.testing.assert_close(kernel.double(), equation, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", FORMATS)
def test_gradients_pass_and_are_rounded(name: str):
    x = torch.linspace(-3, 3, 50, dtype=torch.float64, requires_grad=True)
    weight = torch.linspace(0.1, 0.7, 50, dtype=torch.float64)
    call = OPERATORS[f"to_{name}"]()
    (kernel,) = run_whole(call, [x])
    (equation,) = run_equation(call, whole_task(call, [(50,)]), [x], [(0,)])
    rounded = weight.to(FORMATS[name])
    for result, given in ((kernel, rounded), (equation, weight)):
        (gradient,) = torch.autograd.grad(result, x, given)
        torch.testing.assert_close(gradient, rounded.double(), rtol=0, atol=0)


def test_operators_after_a_cast_compute_in_its_format():
    (x,) = run_whole(OPERATORS["to_bfloat16"](), [torch.randn(4, 4)])
    (product,) = run_whole(OPERATORS["matmul"](), [x, x])
    assert product.dtype == torch.bfloat16
    (back,) = run_whole(OPERATORS["to_float32"](), [product])
    assert back.dtype == torch.float32
    torch.testing.assert_close(back, (x @ x).float(), rtol=0, atol=0)
