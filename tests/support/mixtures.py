"""Mixtures of experts as plain loops over tokens, without regard to speed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from unity.nn import Experts, MixtureOfExperts, load_balancing_loss, router_z_loss


def mixture_by_loops(moe: MixtureOfExperts, x: Tensor) -> Tensor:
    """The output of a mixture by its definition, token by token and choice by choice."""
    experts, router = moe.experts, moe.router
    assert isinstance(experts, Experts)
    routing = router(x)
    width, rows = x.shape[-1], x.reshape(-1, x.shape[-1])
    group = moe.group or x.shape[-2]
    chosen = routing.chosen.reshape(-1, router.top_k).tolist()
    weights = routing.weights.reshape(-1, router.top_k)
    out = [torch.zeros(width, dtype=x.dtype) for _ in rows]
    for first in range(0, len(rows), group):
        left = [places(moe, group)] * router.experts
        for choice in range(router.top_k):
            for token in range(first, first + group):
                expert = chosen[token][choice]
                left[expert] -= 1
                if left[expert] >= 0:
                    made = expert_output(experts, expert, rows[token])
                    out[token] = out[token] + weights[token, choice] * made
    shared = moe.shared
    whole = torch.stack(out).view(x.shape)
    return whole if shared is None else whole + shared(x)


def places(moe: MixtureOfExperts, group: int) -> int:
    """The number of tokens of a group that an expert takes."""
    if moe.capacity_factor is None:
        return group * moe.router.top_k
    share = moe.capacity_factor * group * moe.router.top_k / moe.router.experts
    return max(1, -int(-share // 1))


def expert_output(experts: Experts, expert: int, row: Tensor) -> Tensor:
    """The output of one expert for one token."""

    def linear(name: str, x: Tensor) -> Tensor:
        bias = getattr(experts, f"{name}_bias")
        product = x @ getattr(experts, name)[expert]
        return product if bias is None else product + bias[expert, 0]

    activate = getattr(torch.nn.functional, experts.activation)
    up = linear("up", row)
    inner = activate(up) if experts.gate is None else activate(linear("gate", row)) * up
    return linear("down", inner)


class Words(Module):
    """Layers with mixtures, and a loss of their output."""

    def __init__(self, *mixtures: MixtureOfExperts, balance: float = 0.0) -> None:
        super().__init__()
        self.mixtures, self.balance = torch.nn.ModuleList(mixtures), balance

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        losses: list[Tensor] = []
        for mixture in self.mixtures:
            made, routing = mixture(x)
            x = x + made
            losses += [load_balancing_loss(routing), router_z_loss(routing)]
        loss = torch.nn.functional.mse_loss(x, y)
        return loss + self.balance * torch.stack(losses).sum() if self.balance else loss
