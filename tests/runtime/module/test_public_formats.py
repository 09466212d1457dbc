"""Public models compute nearly the same in bf16 as in float32."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec

import pytest
from support.plans.by_hand import make_plan
from support.public.compared import Loss
from support.public.every import public

from pcg.capture import Captured, capture
from pcg.plan.precision import Precision
from pcg.plan.training import Training
from runtime.module.module import ParallelModule
from runtime.program.lower import Lowering
from runtime.world.collectives import World

NAMES = [
    "recommender",
    *(pytest.param(name, marks=pytest.mark.soak) for name in ("lstm", "graph network")),
    *(
        pytest.param(name, marks=pytest.mark.soak)
        for name in ("gpt2", "llama", "gemma2", "bert", "t5", "mamba", "vit", "convnext", "swin")
        if find_spec("transformers") is not None
    ),
]
NEAR = 2e-3
"""Of the loss; a number in bf16 is off by at most 4e-3, and many numbers make a loss."""


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_in_bf16_are_near(name: str):
    given = public(name)
    by_name = not isinstance(given.inputs, tuple)
    inputs = tuple(given.inputs.values()) if by_name else given.inputs
    module = (Loss(given.module, given.inputs) if by_name else given.module).float()
    made = capture(module, inputs)

    def step(precision: Precision) -> tuple[float, float]:
        """The loss, and the norm of its gradients."""
        parallel = ParallelModule(deepcopy(module), lowered(made, precision), World(), 0)
        loss = parallel(*inputs)
        loss.backward()
        grads = [p.grad.float() for p in parallel.parameters() if p.grad is not None]
        return float(loss), sum(float(grad.square().sum()) for grad in grads) ** 0.5

    (loss, norm), (narrow_loss, narrow_norm) = step("fp32"), step("bf16")
    assert narrow_loss != loss
    assert narrow_loss == pytest.approx(loss, rel=NEAR)
    assert narrow_norm == pytest.approx(norm, rel=10 * NEAR)


def lowered(made: Captured, precision: Precision) -> Lowering:
    """On one device."""
    plan = make_plan(made.graph, made.graph, 1, {})
    return Lowering(replace(plan, naming=made.naming, training=Training("adam", precision)))
