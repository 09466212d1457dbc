"""Losses that keep routers balanced and their logits small."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot

from unity.nn.routing import Routing


def load_balancing_loss(routing: Routing) -> Tensor:
    """How unevenly tokens are routed: experts x sum over experts of (choices of it / tokens) x (its
    mean probability), top_k where all is even. The loss of Switch Transformers (Fedus et al., 2022,
    equation 4), with all choices of a token counted, as Mixtral's. Its gradient is that of the
    probabilities, the softmax of the logits: numbers of choices have none."""
    experts = routing.logits.shape[-1]
    probabilities = routing.logits.flatten(0, -2).softmax(-1)
    counts = one_hot(routing.chosen.flatten(0, -2), experts).sum(1).to(probabilities.dtype)
    return experts * (counts.mean(0) * probabilities.mean(0)).sum()


def router_z_loss(routing: Routing) -> Tensor:
    """The mean over tokens of the square of the logits' logsumexp (ST-MoE, Zoph et al., 2022)."""
    return routing.logits.logsumexp(-1).square().mean()
