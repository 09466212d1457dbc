"""BERT in pre-training, on masked tokens and on pairs of sentences (Devlin et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Bert:
    """An encoder with both heads of its pre-training. Heads divide the hidden size."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    masked: int = 0
    """The number of tokens of a sequence for which the last layer has logits. All if 0."""
    dropout: float = 0.1


class EncoderLayer(nn.Module):
    """Attention and feed-forward. Each is added to its input and normed after that."""

    def __init__(self, of: Bert) -> None:
        super().__init__()
        self.of = of
        self.queries, self.keys, self.values, self.out = (
            nn.Linear(of.hidden, of.hidden) for _ in range(4)
        )
        self.expand = nn.Linear(of.hidden, 4 * of.hidden)
        self.contract = nn.Linear(4 * of.hidden, of.hidden)
        self.attention_norm, self.norm = nn.LayerNorm(of.hidden), nn.LayerNorm(of.hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        parts = (self.queries(x), self.keys(x), self.values(x))
        q, k, v = (part.unflatten(2, (self.of.heads, -1)).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(2, 3) * (self.of.hidden // self.of.heads) ** -0.5 + mask
        seen = self._dropped(functional.softmax(scores, 3)) @ v
        x = self.attention_norm(x + self._dropped(self.out(seen.transpose(1, 2).flatten(2))))
        inner = functional.gelu(self.expand(x))
        return self.norm(x + self._dropped(self.contract(inner)))

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.of.dropout, self.training)


class Encoder(nn.Module):
    """A map from tokens and their segments, [batch, sequence] each, with a mask [batch, 1, 1,
    sequence] that is added to scores, the tokens to predict, and whether sentences follow each
    other, [batch], to the sum of both mean cross-entropies. If only some tokens are predicted,
    ``places`` has their positions, [batch, masked], and labels are of these."""

    def __init__(self, of: Bert) -> None:
        super().__init__()
        self.of = of
        self.table = nn.Embedding(of.vocabulary, of.hidden)
        self.segments = nn.Embedding(2, of.hidden)
        self.positions = nn.Parameter(torch.randn(of.sequence, of.hidden))
        self.first_norm, self.last_norm = nn.LayerNorm(of.hidden), nn.LayerNorm(of.hidden)
        self.layers = nn.ModuleList(EncoderLayer(of) for _ in range(of.layers))
        self.pooled, self.dense = (nn.Linear(of.hidden, of.hidden) for _ in range(2))
        self.follows = nn.Linear(of.hidden, 2)
        self.bias = nn.Parameter(torch.zeros(of.vocabulary))

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor,
        mask: Tensor,
        labels: Tensor,
        following: Tensor,
        places: Tensor | None = None,
    ) -> Tensor:
        x = self.first_norm(self.table(tokens) + self.positions + self.segments(segments))
        x = functional.dropout(x, self.of.dropout, self.training)
        for layer in self.layers:
            x = layer(x, mask)
        pair = self.follows(torch.tanh(self.pooled(x[:, 0])))
        if places is not None:
            x = x.gather(1, places.unsqueeze(2).expand(-1, -1, self.of.hidden))
        x = self.last_norm(functional.gelu(self.dense(x)))
        logits = functional.linear(x, self.table.weight, self.bias)
        words = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return words + functional.cross_entropy(pair, following)


def inputs_of(of: Bert, batch: int) -> tuple[Tensor, ...]:
    """Example inputs of a batch, on the device of new tensors."""
    tokens = torch.zeros(batch, of.sequence, dtype=torch.long)
    mask, pairs = torch.zeros(batch, 1, 1, of.sequence), torch.zeros(batch, dtype=torch.long)
    if not of.masked:
        return tokens, tokens, mask, tokens, pairs
    some = torch.zeros(batch, of.masked, dtype=torch.long)
    return tokens, tokens, mask, some, pairs, some
