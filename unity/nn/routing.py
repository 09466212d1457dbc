"""The router, which chooses experts for tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Linear, Module

from pcg.errors import InputError

SCORES = ("softmax", "sigmoid", "softmax of chosen")


class Routing(NamedTuple):
    """The choices of a router for each token."""

    chosen: Tensor
    """The numbers of the chosen experts, the best first: [..., top_k] of int64."""
    weights: Tensor
    """The weights of their results: [..., top_k]."""
    logits: Tensor
    """The output of the linear layer for all experts: [..., experts]."""


class Router(Module):
    """Chooses the ``top_k`` best of ``experts`` for each token, by a linear layer of its features.

    ``scores``: the scores from which weights are made. ``softmax`` of the logits (Switch, GShard,
    Mixtral, Qwen, OLMoE, DeepSeek-V2), ``sigmoid`` (DeepSeek-V3), or ``softmax of chosen``, the
    softmax of the chosen logits alone (gpt-oss), which is the normalised softmax. ``normalize``:
    the weights of a token are divided by their sum. ``scale``: all weights are multiplied by it.

    ``correction``: a buffer of this name, with a number for each expert, is added to the scores
    when experts are chosen, but not to their weights. It is 0 at first. A training loop may change
    it between steps, as DeepSeek-V3 does to balance experts without a loss. ``noise``: in training,
    the features are multiplied by uniform numbers in 1 +- ``noise`` (Switch). ``bias``: whether the
    linear layer has a bias.

    Scores are computed in float32 if the features are shorter. Ties are decided by torch's
    ``topk``. Raises InputError for numbers that do not fit.
    """

    correction: Tensor | None

    def __init__(
        self,
        width: int,
        experts: int,
        top_k: int,
        *,
        scores: str = "softmax",
        normalize: bool = True,
        scale: float = 1.0,
        correction: bool = False,
        noise: float = 0.0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= experts:
            raise InputError(
                "Router", f"top_k is {top_k}, expected 1 to {experts}, the number of experts"
            )
        if scores not in SCORES:
            raise InputError("Router", f"scores are {scores!r}, expected one of {SCORES}")
        if not 0.0 <= noise < 1.0:
            raise InputError("Router", f"noise is {noise}, expected 0 or more, below 1")
        self.top_k, self.scores, self.normalize = top_k, scores, normalize
        self.scale, self.noise, self.experts = scale, noise, experts
        self.logits = Linear(width, experts, bias=bias)
        self.register_buffer("correction", torch.zeros(experts) if correction else None)

    def forward(self, x: Tensor) -> Routing:
        """Return the routing of ``x``, [..., width]."""
        if self.noise and self.training:
            x = x * (torch.rand_like(x) * (2.0 * self.noise) + (1.0 - self.noise))
        logits = self.logits(x)
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        scores = exact if self.scores == "softmax of chosen" else self._scored(exact)
        if self.correction is None:
            weights, chosen = scores.topk(self.top_k, -1)
        else:
            chosen = (scores + self.correction).topk(self.top_k, -1).indices
            weights = scores.gather(-1, chosen)
        if self.scores == "softmax of chosen":
            weights = weights.softmax(-1)
        elif self.normalize:
            # All sigmoids may be 0.
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return Routing(chosen, weights.to(x.dtype) * self.scale, logits)

    def _scored(self, logits: Tensor) -> Tensor:
        return logits.sigmoid() if self.scores == "sigmoid" else logits.softmax(-1)

    def extra_repr(self) -> str:
        return f"top_k={self.top_k}, scores={self.scores!r}, normalize={self.normalize}"
