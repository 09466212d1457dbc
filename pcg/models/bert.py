"""BERT, trained to predict masked tokens (Devlin et al., NAACL 2019).

The loss is a cross-entropy over the vocabulary at every position, which costs as much as
pre-training. The token table is also the weight of the last layer. Sequences have full length, so
there is no padding mask. There is no dropout, so that losses of different runs can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class BertSize:
    """Heads divide the hidden size."""

    layers: int
    hidden: int
    heads: int
    inner: int
    """The width of the feed-forward layers."""
    sequence: int
    vocabulary: int


SIZES = {
    "bert-large": BertSize(24, 1024, 16, 4096, 512, 30522),
    "bert-large-tiny": BertSize(2, 96, 12, 384, 24, 768),
}
EPS = 1e-12
SEGMENTS = 2


class Attention(nn.Module):
    """Self-attention with a dimension for heads: [batch, heads, sequence, hidden / heads]."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        seen = functional.scaled_dot_product_attention(q, k, v)
        return self.out(seen.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Attention and feed-forward, each added to its input and normed."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.attention = Attention(size.hidden, size.heads)
        self.attention_norm = nn.LayerNorm(size.hidden, eps=EPS)
        self.expand = nn.Linear(size.hidden, size.inner)
        self.contract = nn.Linear(size.inner, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        return self.norm(x + self.contract(functional.gelu(self.expand(x))))


class Bert(nn.Module):
    """BERT with its loss: from tokens, segments and labels, [batch, sequence] each, to the mean
    cross-entropy."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.token_table = nn.Embedding(size.vocabulary, size.hidden)
        self.segment_table = nn.Embedding(SEGMENTS, size.hidden)
        self.positions = nn.Parameter(torch.randn(size.sequence, size.hidden))
        self.embedding_norm = nn.LayerNorm(size.hidden, eps=EPS)
        self.layers = nn.Sequential(*(Layer(size) for _ in range(size.layers)))
        self.transform = nn.Linear(size.hidden, size.hidden)
        self.transform_norm = nn.LayerNorm(size.hidden, eps=EPS)
        self.bias = nn.Parameter(torch.zeros(size.vocabulary))

    def forward(self, tokens: Tensor, segments: Tensor, labels: Tensor) -> Tensor:
        x = self.token_table(tokens) + self.segment_table(segments) + self.positions
        x = self.layers(self.embedding_norm(x))
        x = self.transform_norm(functional.gelu(self.transform(x)))
        logits = functional.linear(x, self.token_table.weight, self.bias)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make(name: str, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the module of a size, and example inputs."""
    size = SIZES[name]
    ids = [torch.empty(batch, size.sequence, dtype=torch.int64) for _ in range(3)]
    return Bert(size), tuple(ids)
