"""Losses that keep routers balanced and their logits small."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot

from unity.nn.routing import Routing


def load_balancing_loss(routing: Routing) -> Tensor:
    """Return a loss for uneven routing: the number of experts, times the sum over experts of
    (choices of the expert / tokens) x (mean probability of the expert). Even routing gives top_k.

    This is the loss of Switch Transformers (Fedus et al., 2022, equation 4), with all choices of a
    token counted, as in Mixtral. Probabilities are the softmax of the logits. The gradient is that
    of the probabilities; numbers of choices have none.
    """
    experts = routing.logits.shape[-1]
    probabilities = routing.logits.flatten(0, -2).softmax(-1)
    counts = one_hot(routing.chosen.flatten(0, -2), experts).sum(1).to(probabilities.dtype)
    return experts * (counts.mean(0) * probabilities.mean(0)).sum()


def router_z_loss(routing: Routing) -> Tensor:
    """Return the mean of the squared logsumexp of the logits (ST-MoE, Zoph et al., 2022)."""
    return routing.logits.logsumexp(-1).square().mean()
