"""A product with its activation in one kernel: the values and gradients of the two in turn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pcg.ops import OPERATORS
from pcg.ops.algebra import with_epilogue
from runtime.execute.kernels import run_whole


def operands(shape: tuple[int, ...], device: str = "cpu") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (
        torch.randn(s, generator=generator, dtype=torch.float64) for s in (shape, (shape[-1], 5))
    )
    return x.to(device), w.to(device)


def gradients(value: Tensor, wanted: list[Tensor]) -> tuple[Tensor, ...]:
    weights = torch.arange(value.numel(), dtype=value.dtype, device=value.device)
    return torch.autograd.grad((value * weights.view(value.shape)).sum(), wanted)


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (2, 1, 2, 3)])
@pytest.mark.parametrize("trained", [(True, True), (False, True), (True, False)])
def test_fused_product_and_activation_equals_two_kernels(shape, trained):
    given = operands(shape)
    for operand, needs in zip(given, trained, strict=True):
        operand.requires_grad_(needs)
    wanted = [operand for operand in given if operand.requires_grad]
    expected = torch.relu(torch.matmul(*given))
    slopes = gradients(expected, wanted)
    for actual in (with_epilogue()(*given), *run_whole(OPERATORS["matmul_relu"](), given)):
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(gradients(actual, wanted), slopes)


def test_fused_product_saves_its_operands_and_output():
    x, w = (operand.requires_grad_() for operand in operands((4, 3)))
    held: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        held.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        (value,) = run_whole(OPERATORS["matmul_relu"](), [x, w])
    assert {t.data_ptr() for t in held} == {t.data_ptr() for t in (x, w, value)}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_computes_and_differentiates_as_with_two_kernels():
    given = [operand.requires_grad_() for operand in operands((64, 32), "cuda")]
    expected = torch.relu(torch.matmul(*given))
    (actual,) = run_whole(OPERATORS["matmul_relu"](), given)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradients(actual, given), gradients(expected, given))
