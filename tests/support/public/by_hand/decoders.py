"""Decoders with attention to the words of a text, and attention of linear cost."""

from __future__ import annotations

import torch
from support.public.by_hand.inputs import LENGTH, WORDS, Maker, ids, rows, words
from torch import Tensor, nn
from torch.nn import functional as f


class AttentionDecoder(nn.Module):
    """A GRU cell in a loop, with additive attention to the states of an encoder (Bahdanau)."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)
        self.encoder, self.cell = nn.GRU(16, 16, batch_first=True), nn.GRUCell(32, 16)
        self.pair, self.score = nn.Linear(32, 16), nn.Linear(16, 1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.table(source))
        state, losses = last.squeeze(0), torch.zeros(())
        for place in range(target.size(1) - 1):
            seen = torch.cat([self.table(target[:, place]), self.context(state, memory)], 1)
            state = self.cell(seen, state)
            losses = losses + f.cross_entropy(self.head(state), target[:, place + 1])
        return losses / target.size(1)

    def context(self, state: Tensor, memory: Tensor) -> Tensor:
        """The mean of the memory, by the weights of attention."""
        pairs = torch.cat([state.unsqueeze(1).expand_as(memory), memory], -1)
        weights = f.softmax(self.score(torch.tanh(self.pair(pairs))).squeeze(-1), 1)
        return (weights.unsqueeze(1) @ memory).squeeze(1)


class PointerNetwork(nn.Module):
    """A choice of words of the text, one after another. No word is chosen twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 16)
        self.encoder, self.cell = nn.GRU(16, 16, batch_first=True), nn.GRUCell(32, 16)

    def forward(self, text: Tensor, places: Tensor) -> Tensor:
        memory, last = self.encoder(self.table(text))
        state, taken = last[0], torch.zeros(text.shape, dtype=torch.bool)
        logits: list[Tensor] = []
        for step in range(places.shape[1]):
            state = self.cell(torch.cat([memory.mean(1), state], 1), state)
            scores = (memory @ state.unsqueeze(-1)).squeeze(-1)
            logits.append(scores.masked_fill(taken, -1e9))
            taken = taken.scatter(1, places[:, step : step + 1], True)
        return f.cross_entropy(torch.stack(logits, 1).flatten(0, 1), places.flatten())


class Performer(nn.Module):
    """Attention by random features of queries and keys, without products of all pairs."""

    features: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 1)
        self.register_buffer("features", torch.randn(2, 8, 8))

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        samples, length, width = x.shape
        split = self.qkv(x).view(samples, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        query, key = self.positive(query), self.positive(key)
        sums = torch.einsum("bhnd,bhne->bhde", key, value)
        inverse = 1 / torch.einsum("bhnd,bhd->bhn", query, key.sum(2))
        mixed = torch.einsum("bhnd,bhde,bhn->bhne", query, sums, inverse)
        mean = mixed.transpose(1, 2).reshape(samples, length, width).mean(1)
        return f.mse_loss(self.head(mean), wanted)

    def positive(self, x: Tensor) -> Tensor:
        return f.relu(torch.einsum("bhnd,hde->bhne", x, self.features)) + 1e-3


def distinct_places() -> Tensor:
    """Four places of each text, each once."""
    return torch.rand(ids(1).shape[0], LENGTH).argsort(1)[:, :4]


DECODERS: dict[str, Maker] = {
    "attention-decoder": lambda: (AttentionDecoder(), (words(), words(6))),
    "pointer-network": lambda: (PointerNetwork(), (words(), distinct_places())),
    "performer": lambda: (Performer(), (rows(6, 16), rows(1))),
}
