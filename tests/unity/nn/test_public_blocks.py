"""A model with a public mixture of experts is planned unchanged, in one call."""

from __future__ import annotations

import torch
from support.blocks import MixtralSparseMoeBlock, WithLoss

import unity


def test_a_plan_says_which_blocks_lost_their_loop():
    torch.manual_seed(0)
    model = WithLoss(MixtralSparseMoeBlock(6, 4, 4, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan = unity.optimize(
        model, torch.randn(2, 3, 6), devices=2, planner="data-parallel", quiet=True
    )
    assert "\n1 x MixtralSparseMoeBlock without its loop: " in str(plan)
    # The module itself ran, with its loop.
    assert plan.agreement is not None
    assert plan.agreement.gradients == 13
    assert "forward" not in vars(model.block)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
