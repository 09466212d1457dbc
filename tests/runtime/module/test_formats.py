"""A plain training loop computes in the number format of the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.runs.own_loop import batch_of, words, words_planned
from torch import nn

from pcg.errors import InputError
from pcg.plan.plan import Plan
from pcg.plan.precision import Precision
from pcg.plan.training import Training
from runtime.module.module import ParallelModule
from runtime.program.lower import Lowering
from runtime.world.collectives import World


def planned(precision: Precision) -> Plan:
    return replace(words_planned("joint", 1), training=Training("adam", precision))


def step(module: nn.Module, precision: Precision) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss and the gradients of a batch."""
    parallel = ParallelModule(module, Lowering(planned(precision)), World(), 0)
    loss = parallel(**batch_of(0))["loss"]
    loss.backward()
    trained = {name: p for name, p in parallel.named_parameters() if p.grad is not None}
    assert {p.dtype for p in trained.values()} == {next(module.parameters()).dtype}
    return float(loss), {name: p.grad for name, p in trained.items() if p.grad is not None}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_narrow_format_has_wide_parameters_and_gradients(precision: Precision):
    exact, expected = step(words().float(), "fp32")
    mixed, actual = step(words().float(), precision)
    assert mixed != exact
    assert mixed == pytest.approx(exact, rel=0.01)
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        assert gradient.dtype == torch.float32
        assert torch.allclose(gradient, expected[name], atol=0.02, rtol=0.05)


def test_module_in_double_precision_ignores_the_number_format():
    assert step(words(), "bf16")[0] == step(words(), "fp64")[0] == step(words(), "fp32")[0]


def test_parameters_in_a_narrow_format_are_refused():
    with pytest.raises(InputError, match="its parameters are bfloat16, expected all in float32"):
        step(words().bfloat16(), "bf16")
