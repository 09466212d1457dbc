"""A plain training loop computes in the number format of the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.runs.own_loop import batch_of, words, words_planned
from torch import nn

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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_of_a_module_in_a_narrow_format_are_kept_in_float32(precision: Precision):
    """It trains as its copy in float32, and evaluates as itself."""
    narrow, copied = words().bfloat16(), words().float()
    copied.load_state_dict(narrow.state_dict())
    parallel, other = (
        ParallelModule(module, Lowering(planned(precision)), World(), 0)
        for module in (narrow, copied)
    )
    for batch in (batch_of(0), batch_of(1)):
        losses = [model(**batch)["loss"] for model in (parallel, other)]
        assert float(losses[0]) == float(losses[1])
        for model, loss in zip((parallel, other), losses, strict=True):
            model.zero_grad()
            loss.backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
    assert {parameter.dtype for parameter in parallel.parameters()} == {torch.float32}
    state, expected = parallel.state_dict(), other.state_dict()
    torch.testing.assert_close(state, expected, rtol=0, atol=0, check_dtype=False)
    narrow.load_state_dict(state)
    parallel.eval()
    with torch.no_grad(), parallel.by_itself():
        assert torch.equal(parallel(**batch_of(0))["loss"], narrow.eval()(**batch_of(0))["loss"])
