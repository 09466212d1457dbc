"""The transformers of published runs, as plain modules that ``pcg.capture`` reads.

Each follows its source in what a step computes: which products have biases, whether attention is
one kernel, where dropout stands, and whether the table of tokens is the last layer's weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Gpt:
    """A decoder of GPT's form. Heads divide the hidden size."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    bias: bool = True
    """Whether products and norms have biases."""
    dropout: float = 0.1
    """On attention's probabilities, and before each residual sum."""
    one_kernel: bool = False
    """Whether attention is one kernel (FlashAttention)."""


class Attention(nn.Module):
    """Causal self-attention; one product makes queries, keys and values."""

    def __init__(self, of: Gpt) -> None:
        super().__init__()
        self.of = of
        self.three = nn.Linear(of.hidden, 3 * of.hidden, of.bias)
        self.out = nn.Linear(of.hidden, of.hidden, of.bias)
        mask = torch.full((of.sequence, of.sequence), -1e4).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        three = self.three(x).unflatten(2, (self.of.heads, -1)).transpose(1, 2)
        q, k, v = three.chunk(3, 3)
        if self.of.one_kernel:
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) * (self.of.hidden // self.of.heads) ** -0.5
            chances = functional.softmax(scores + self.mask, 3)
            seen = functional.dropout(chances, self.of.dropout, self.training) @ v
        return self.out(seen.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and feed-forward, each normed before and added to its input."""

    def __init__(self, of: Gpt) -> None:
        super().__init__()
        self.dropout = of.dropout
        self.attention_norm = nn.LayerNorm(of.hidden, bias=of.bias)
        self.attention = Attention(of)
        self.norm = nn.LayerNorm(of.hidden, bias=of.bias)
        self.expand = nn.Linear(of.hidden, 4 * of.hidden, of.bias)
        self.contract = nn.Linear(4 * of.hidden, of.hidden, of.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._dropped(self.attention(self.attention_norm(x)))
        inner = functional.gelu(self.expand(self.norm(x)))
        return x + self._dropped(self.contract(inner))

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training) if self.dropout else x


class Decoder(nn.Module):
    """Tokens and the tokens to predict, [batch, sequence] each, to the mean cross-entropy."""

    def __init__(self, of: Gpt) -> None:
        super().__init__()
        self.table = nn.Embedding(of.vocabulary, of.hidden)
        self.positions = nn.Parameter(torch.randn(of.sequence, of.hidden))
        self.layers = nn.Sequential(*(Layer(of) for _ in range(of.layers)))
        self.norm = nn.LayerNorm(of.hidden, bias=of.bias)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.layers(self.table(tokens) + self.positions)
        logits = functional.linear(self.norm(x), self.table.weight)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
