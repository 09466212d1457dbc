"""Further features of torch that models use: memory, constants and checks. See ``tricky``."""

from __future__ import annotations

import torch
from support.graphs.tricky import ROWS, WIDTH, ends
from torch.nn import functional as f


def filled(m, h):
    """A tensor filled place by place, like the loop over words of RWKV."""
    made = torch.empty(ROWS, 4, dtype=h.dtype)
    for i in range(4):
        made[:, i] = h[:, i] * h[:, i + 4]
    return made


def interleaved(m, h):
    made = h.new_empty(ROWS, WIDTH)
    made[..., 0::2] = h[:, :4].sin()
    made[..., 1::2] = h[:, 4:].cos()
    return made


def filled_in_part(m, h):
    made = torch.empty(ROWS, 4, dtype=h.dtype)
    for i in range(3):
        made[:, i] = h[:, i]
    return made


def policy(m, x):
    """Distributions that check their arguments, as in losses of reinforcement learning."""
    chosen = torch.distributions.Categorical(logits=m.a(x))
    spread = torch.distributions.Normal(m.a(x), m.v.exp(), validate_args=None)
    return (chosen.log_prob(m.ids) - chosen.entropy()).mean() + spread.log_prob(x).mean()


def certain(m, h):
    """A loss of probabilities that are 0 or 1 exactly: torch bounds their logarithms."""
    share = torch.where(h > 0, h - h.detach() + 1, h - h.detach())
    right = f.binary_cross_entropy(share, (h > 0).to(h.dtype), reduction="none")
    return right + f.binary_cross_entropy(share * h.sigmoid(), share.detach(), reduction="none")


VALUES = {
    "probabilities of 0 and 1": ends(certain),
    "deviation of equal elements": ends(lambda m, h: (h[:, :1] * torch.ones(WIDTH)).std(1)),
    "memory that is filled": ends(filled),
    "memory that is filled by halves": ends(interleaved),
    "memory that is copied to": ends(lambda m, h: torch.empty_like(h).copy_(h) * 2),
    "distributions": policy,
    "an inverse": lambda m, x: (
        (m.w + 9 * torch.eye(WIDTH, dtype=x.dtype)).inverse().sum() + m.a(x).sum()
    ),
    "a Cholesky factor": lambda m, x: torch.linalg.cholesky(
        m.a(x).T @ m.a(x) + torch.eye(WIDTH, dtype=x.dtype)
    ).sum(),
    "off the diagonal": lambda m, x: (
        (m.a(x) @ m.w[:ROWS].T)[~torch.eye(ROWS, dtype=torch.bool)].view(ROWS, -1).logsumexp(1)
    ).sum(),
    "a mask of constants": ends(lambda m, h: h[:, torch.arange(WIDTH) % 2 == 0]),
    "masked_select of constants": ends(
        lambda m, h: h.masked_select(torch.ones(ROWS, WIDTH).tril().bool())
    ),
    "places of constants": ends(lambda m, h: h[:, (torch.arange(WIDTH) > 3).nonzero()[:, 0]]),
    "where of constants": ends(lambda m, h: h[torch.where(torch.arange(ROWS) > 2)]),
    "shifts": ends(lambda m, h: h * ((m.ids << 2) >> 1)[:, None]),
    "labels that end": lambda m, x: f.multilabel_margin_loss(
        m.a(x), torch.tensor([[1, 2, -1, 0, 0, 0, 0, 0]] * ROWS)
    ),
    # in place
}
"""Functions that have to be captured with their gradients."""

UNHELD = {
    "memory that is filled in part": ends(filled_in_part),
    "a choice by torch.cond": ends(
        lambda m, h: torch.cond(h.sum() > 0, lambda z: z * 2, lambda z: z + 1, (h,))
    ),
    "a sparse product": lambda m, x: torch.sparse.mm(torch.eye(ROWS).to_sparse(), m.a(x)).sum(),
    "bits of numbers": ends(lambda m, h: h * h.detach().view(torch.int32).bitwise_and(1)),
    "what a buffer chooses": ends(lambda m, h: h[m.ids > 2]),
}
"""Functions that are refused by the line that calls them."""
