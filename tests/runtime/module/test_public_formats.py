"""Public models compute nearly the same in bf16 as in float32."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from support.plans.by_hand import make_plan
from support.public.calls import Loss
from support.public.others import OTHERS
from torch import Tensor, nn

from pcg.capture import Captured, capture
from pcg.plan.precision import Precision
from pcg.plan.training import Training
from runtime.module.module import ParallelModule
from runtime.program.lower import Lowering
from runtime.world.collectives import World

OTHER_NAMES = ["gpt2", "llama", "gemma2", "bert", "t5", "mamba", "vit", "convnext", "swin"]
"""Of transformers, where that is installed."""
NEAR = 2e-3
"""Of the loss; a number in bf16 is off by at most 4e-3, and many numbers make a loss."""


@pytest.mark.parametrize(
    "name",
    [
        name if name == "recommender" else pytest.param(name, marks=pytest.mark.soak)
        for name in OTHERS
    ],
)
def test_losses_and_gradients_in_bf16_are_near(name: str):
    torch.manual_seed(0)
    is_near(*OTHERS[name]())


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHER_NAMES)
def test_models_of_transformers(name: str):
    pytest.importorskip("transformers")
    given = import_module("support.public.every").public(name)
    is_near(Loss(given.module, given.inputs), tuple(given.inputs.values()))


def is_near(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """A module in bf16 beside itself in float32."""
    module = module.float()
    made = capture(module, inputs)

    def step(precision: Precision) -> tuple[float, float]:
        """The loss, and the norm of its gradients."""
        parallel = ParallelModule(deepcopy(module), lowered(made, precision), World(), 0)
        loss = parallel(*inputs)
        loss.backward()
        grads = [p.grad.float() for p in parallel.parameters() if p.grad is not None]
        return loss.item(), sum(float(grad.square().sum()) for grad in grads) ** 0.5

    (loss, norm), (narrow_loss, narrow_norm) = step("fp32"), step("bf16")
    assert narrow_loss != loss
    assert narrow_loss == pytest.approx(loss, rel=NEAR)
    assert narrow_norm == pytest.approx(norm, rel=10 * NEAR)


def lowered(made: Captured, precision: Precision) -> Lowering:
    """On one device."""
    plan = make_plan(made.graph, made.graph, 1, {})
    return Lowering(replace(plan, naming=made.naming, training=Training("adam", precision)))
