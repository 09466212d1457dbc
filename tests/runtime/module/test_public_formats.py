"""Public models compute nearly the same in bf16 as in float32."""

from __future__ import annotations

from collections.abc import Callable
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
"""Models of transformers, if it is installed."""
NEAR = 2e-3
"""Tolerance of the loss. A number in bf16 is off by at most 4e-3, and many numbers make a loss."""
OF_FEW = frozenset({"several graphs"})
"""Models whose loss comes from few numbers, so that rounding errors do not cancel."""
SEEDS = 40
TIMES = 1.5
"""The largest error of such a loss, relative to its error under torch's autocast. Both are root
mean squares over seeds, each exact to about a tenth."""


@pytest.mark.parametrize(
    "name",
    [
        name if name == "recommender" else pytest.param(name, marks=pytest.mark.soak)
        for name in OTHERS
    ],
)
def test_losses_and_gradients_in_bf16_are_near(name: str):
    torch.manual_seed(0)
    if name in OF_FEW:
        is_as_near_as_autocast(OTHERS[name])
    else:
        is_near(*OTHERS[name]())


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHER_NAMES)
def test_models_of_transformers(name: str):
    pytest.importorskip("transformers")
    given = import_module("support.public.every").public(name)
    is_near(Loss(given.module, given.inputs), tuple(given.inputs.values()))


def is_near(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Check a module in bf16 against itself in float32."""
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


def is_as_near_as_autocast(make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]) -> None:
    """Check that the error of a module's loss in bf16 is little more than torch's own."""
    module, inputs = make()
    plans = {name: lowered(capture(module, inputs), name) for name in ("fp32", "bf16")}
    own: list[float] = []
    of_torch: list[float] = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        module, inputs = make()
        wide, narrow = (ParallelModule(deepcopy(module), p, World(), 0) for p in plans.values())
        with torch.no_grad():
            loss = module(*inputs).item()
            with torch.autocast("cpu", torch.bfloat16):
                of_torch.append(module(*inputs).item() / loss - 1)
        assert wide(*inputs).item() == pytest.approx(loss, rel=1e-5)
        own.append(narrow(*inputs).item() / loss - 1)
    assert 0 < root_mean_square(own) <= TIMES * root_mean_square(of_torch)


def root_mean_square(values: list[float]) -> float:
    return (sum(value**2 for value in values) / len(values)) ** 0.5


def lowered(made: Captured, precision: Precision) -> Lowering:
    """The plan on one device."""
    plan = make_plan(made.graph, made.graph, 1, {})
    return Lowering(replace(plan, naming=made.naming, training=Training("adam", precision)))
