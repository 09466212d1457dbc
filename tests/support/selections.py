"""Losses of elements that a mask selects, as models write them.

Functions of a module with two layers and a table, rows, a mask of their elements, and labels.
"""

from __future__ import annotations

import torch
from support.torch_release import IS_2_11
from torch import nn
from torch.nn import functional as f

ROWS, WIDTH, CLASSES = 6, 8, 9


class Layers(nn.Module):
    """``function`` makes the loss."""

    def __init__(self, function):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table = nn.Embedding(CLASSES, WIDTH)
        self.function = function

    def forward(self, x, mask, labels):
        return self.function(self, x, mask, labels)


def inputs():
    """Rows, a mask of their elements, labels."""
    mask = torch.rand(ROWS, WIDTH) < 0.6
    mask[:2, 0] = torch.tensor([True, False])
    return torch.randn(ROWS, WIDTH), mask, torch.randint(0, WIDTH, (ROWS,))


def errors(m, x):
    return (m.a(x) - x).square()


def logarithms(m, x, k, t):
    """The scale-invariant error of depths: logarithms of zeros where the mask is false."""
    away = torch.log(m.a(x).exp()[k]) - torch.log((x.abs() * k)[k])
    return away.square().mean() - 0.5 * away.mean() ** 2


def positions(m, x, k, t):
    row, column = torch.where(k)
    return errors(m, x)[row, column].mean()


def rows_of_ids(m, x, k, t):
    ids = torch.where(k[:, 0], t, -100)
    kept = ids != -100
    return (m.table(ids[kept]) * m.a(x)[kept]).sum(-1).mean()


def masked_words(m, x, k, t):
    """Only masked words reach the head, as in BERT's training."""
    kept = k[:, 0]
    h = f.layer_norm(m.b(m.a(x)[kept].relu()), (WIDTH,))
    return f.cross_entropy(h @ m.table.weight.T, t[kept])


def all_options(m, x, k, t):
    kept, weight = k[:, 0], torch.arange(1.0, WIDTH + 1).to(x.dtype)
    return f.cross_entropy(
        m.a(x)[kept], t[kept], weight=weight, label_smoothing=0.1, ignore_index=3
    )


def routed(m, x, k, t):
    """A loop over experts, as public mixtures write it."""
    share, chosen = m.a(x).softmax(-1).topk(2, -1)
    by_expert = f.one_hot(chosen, WIDTH).permute(2, 1, 0)
    out = torch.zeros_like(x)
    for expert in range(3):
        place, row = torch.where(by_expert[expert])
        out.index_add_(0, row, m.b(x[row]) * share[row, place, None])
    return out.square().sum()


def in_place(m, x, k, t):
    h = m.a(x)[k]
    h += 1
    return h.relu_().square().sum()


def put_back(m, x, k, t):
    h = errors(m, x).clone()
    h[k] = h[k] * 2
    rows = torch.zeros_like(x)
    rows[k[:, 0]] = m.b(x[k[:, 0]])
    return h.sum() + (rows + x).square().mean()


def changed_mask(m, x, k, t):
    """A mask that changes in place between two selections."""
    k = k & (x > -9)
    before = x.square()[k].mean()
    k[0] = ~k[0]
    return errors(m, x)[k].sum() * before


EXACT = {
    "a mean": lambda m, x, k, t: errors(m, x)[k].mean(),
    "a sum by a count": lambda m, x, k, t: errors(m, x)[k].sum() / k.sum().clamp(min=1),
    "a sum by a length": lambda m, x, k, t: (y := errors(m, x)[k]).sum() / y.numel(),
    "rows": lambda m, x, k, t: errors(m, x)[k[:, 0]].mean(),
    "a sum by the rows": lambda m, x, k, t: (y := errors(m, x)[k[:, 0]]).sum() / y.shape[0],
    "columns": lambda m, x, k, t: m.a(x)[:, k[0]].square().mean(1).sum(),
    "masked_select": lambda m, x, k, t: errors(m, x).masked_select(k).mean(),
    "nonzero": lambda m, x, k, t: errors(m, x)[k[:, 0].nonzero().squeeze(1)].mean(),
    "positions": positions,
    "three dimensions": lambda m, x, k, t: (
        errors(m, x).view(3, 2, 8)[k.view(3, 2, 8)].mean()
        + errors(m, x).view(3, 2, 8)[:, k[:2, 0]].mean()
    ),
    "both sides of a mask": lambda m, x, k, t: errors(m, x)[k].sum() + errors(m, x)[~k].mean(),
    "the greatest": lambda m, x, k, t: m.a(x)[k].max() + m.a(x)[k].amin(),
    "a standard deviation": lambda m, x, k, t: m.a(x)[k].std() + m.a(x)[k].var(),
    "norms": lambda m, x, k, t: (m.a(x)[k[:, 0]] - x[k[:, 0]]).norm(dim=-1).mean(),
    "flat rows": lambda m, x, k, t: f.smooth_l1_loss(
        m.a(x)[k[:, 0]].flatten(), x[k[:, 0]].flatten()
    ),
    "split rows": lambda m, x, k, t: m.a(x)[k[:, 0]].view(-1, 2, 4).sum(1).square().mean(),
    "a layer of rows": lambda m, x, k, t: m.a(x[k[:, 0]]).square().mean(),
    "rows beside infinite ones": lambda m, x, k, t: (
        m.a(torch.where(k[:, :1], x, float("inf"))[k[:, 0]]).square().mean()
    ),
    "joined rows": lambda m, x, k, t: (
        torch.cat([m.a(x)[k[:, 0]], m.b(x)[k[:, 0]]], -1).square().mean()
    ),
    "mse": lambda m, x, k, t: f.mse_loss(m.a(x)[k], x[k]),
    "l1": lambda m, x, k, t: f.l1_loss(m.a(x)[k[:, 0]], x[k[:, 0]]),
    "huber": lambda m, x, k, t: f.huber_loss(m.a(x)[k], x[k], delta=0.5, reduction="sum"),
    "bce": lambda m, x, k, t: f.binary_cross_entropy(m.a(x).sigmoid()[k], (x[k] > 0).to(x.dtype)),
    "bce with logits": lambda m, x, k, t: f.binary_cross_entropy_with_logits(
        m.a(x)[k], (x[k] > 0).to(x.dtype)
    ),
    "kl": lambda m, x, k, t: f.kl_div(
        m.a(x)[k[:, 0]].log_softmax(-1), x[k[:, 0]].softmax(-1), reduction="batchmean"
    ),
    "cosine": lambda m, x, k, t: f.cosine_embedding_loss(
        m.a(x)[k[:, 0]], m.b(x)[k[:, 0]], t[k[:, 0]] % 2 * 2 - 1
    ),
    "cross entropy": lambda m, x, k, t: f.cross_entropy(m.a(x)[k[:, 0]], t[k[:, 0]]),
    "cross entropy with options": all_options,
    "cross entropies": lambda m, x, k, t: f.cross_entropy(
        m.a(x)[t > 1], t[t > 1], reduction="none"
    ).mean(),
    "hard examples": lambda m, x, k, t: (y := f.cross_entropy(m.a(x), t, reduction="none"))[
        y > y.mean()
    ].mean(),
    "gathered": lambda m, x, k, t: (
        m.a(x)[k[:, 0]].log_softmax(-1).gather(1, t[k[:, 0]].unsqueeze(1)).mean()
    ),
    "logarithms": logarithms,
    "rows of ids": rows_of_ids,
    "masked words": masked_words,
    "added at ids": lambda m, x, k, t: (
        torch.zeros(CLASSES, WIDTH, dtype=x.dtype)
        .index_add(0, t[k[:, 0].nonzero()[:, 0]], m.a(x)[k[:, 0].nonzero()[:, 0]])
        .square()
        .sum()
    ),
    "a mixture": routed,
    "in place": in_place,
    "put back": put_back,
    "a mask that changes": changed_mask,
}

REFUSED = {
    "two masks in one sum": lambda m, x, k, t: (m.a(x)[k[:, 0]] + m.b(x)[:1]).cumsum(0).sum(),
    "pairs of selected rows": lambda m, x, k, t: (
        (m.a(x)[k[:, 0]] @ m.a(x)[k[:, 0]].T).softmax(-1)[:, 0].sum()
    ),
    "an order": lambda m, x, k, t: m.a(x)[k].sort().values[0],
    "rows beside others": lambda m, x, k, t: torch.cat([m.a(x)[k[:, 0]], m.b(x)]).square().mean(),
    "a table of selected rows": lambda m, x, k, t: f.embedding(
        (t[k[:, 0]] > 4).long(), m.a(x)[k[:, 0]]
    ).sum(),
    "a power of their number": lambda m, x, k, t: (m.a(x)[k] ** (1.0 / m.a(x)[k].numel())).sum(),
    "dropout": lambda m, x, k, t: f.dropout(m.a(x)[k], 0.5).sum(),
}
"""Functions of selected elements that are refused by the line that calls them."""
if IS_2_11:
    REFUSED["cross entropies"] = EXACT.pop("cross entropies")
