"""The transformers of published runs, as plain modules that ``pcg.capture`` reads.

Each follows its source in the computation of a step: which products have biases, whether attention
is one kernel, the places of dropout, and whether the table of tokens is the last layer's weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from fidelity import bert, resnet
from fidelity.bert import Bert, Encoder
from fidelity.resnet import Residual, ResNet
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
    """The rate of dropout on attention's probabilities, and before each residual sum."""
    one_kernel: bool = False
    """Whether attention is one kernel (FlashAttention)."""


@dataclass(frozen=True)
class Llama:
    """A decoder of Llama's form: root mean square norms, rotary positions, keys and values of
    groups of heads, gated feed-forward of ``inner`` columns, no biases and no dropout."""

    layers: int
    hidden: int
    heads: int
    groups: int
    inner: int
    sequence: int
    vocabulary: int


class Attention(nn.Module):
    """Causal self-attention. One product makes queries, keys and values."""

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
    """A map from tokens and the tokens to predict, [batch, sequence] each, to the mean
    cross-entropy."""

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


class Rotary(nn.Module):
    """Turns halves of queries or keys, [batch, heads, sequence, size], by their places."""

    def __init__(self, sequence: int, size: int) -> None:
        super().__init__()
        rates = 5e5 ** (-torch.arange(0, size, 2) / size)
        angles = (torch.arange(sequence)[:, None] * rates).repeat(1, 2)
        self.cosines = nn.Buffer(angles.cos(), persistent=False)
        self.sines = nn.Buffer(angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, 3)
        return x * self.cosines + torch.cat((-second, first), 3) * self.sines


class GroupedAttention(nn.Module):
    """Causal self-attention in one kernel, in which groups of heads share keys and values."""

    def __init__(self, of: Llama) -> None:
        super().__init__()
        self.size = of.hidden // of.heads
        self.queries = nn.Linear(of.hidden, of.hidden, bias=False)
        self.keys = nn.Linear(of.hidden, of.groups * self.size, bias=False)
        self.values = nn.Linear(of.hidden, of.groups * self.size, bias=False)
        self.out = nn.Linear(of.hidden, of.hidden, bias=False)
        self.rotary = Rotary(of.sequence, self.size)

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.queries(x), self.keys(x), self.values(x))
        q, k, v = (part.unflatten(2, (-1, self.size)).transpose(1, 2) for part in parts)
        q, k = self.rotary(q), self.rotary(k)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(seen.transpose(1, 2).flatten(2))


class LlamaLayer(nn.Module):
    """Attention and gated feed-forward, each normed before and added to its input."""

    def __init__(self, of: Llama) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.RMSNorm(of.hidden), nn.RMSNorm(of.hidden)
        self.attention = GroupedAttention(of)
        self.gate = nn.Linear(of.hidden, of.inner, bias=False)
        self.expand = nn.Linear(of.hidden, of.inner, bias=False)
        self.contract = nn.Linear(of.inner, of.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        inner = self.norm(x)
        return x + self.contract(functional.silu(self.gate(inner)) * self.expand(inner))


class LlamaDecoder(nn.Module):
    """Like ``Decoder``, but the last layer has a weight of its own."""

    def __init__(self, of: Llama) -> None:
        super().__init__()
        self.table = nn.Embedding(of.vocabulary, of.hidden)
        self.layers = nn.Sequential(*(LlamaLayer(of) for _ in range(of.layers)))
        self.norm = nn.RMSNorm(of.hidden)
        self.last = nn.Linear(of.hidden, of.vocabulary, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.last(self.norm(self.layers(self.table(tokens))))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


Model = Gpt | Llama | Bert | ResNet
KINDS: Mapping[str, type[Model]] = {"gpt": Gpt, "llama": Llama, "bert": Bert, "resnet": ResNet}


def decoder_of(model: Gpt | Llama) -> nn.Module:
    """The module of a decoder."""
    return Decoder(model) if isinstance(model, Gpt) else LlamaDecoder(model)


def module_of(model: Model, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module of a model, and example inputs of a batch."""
    if isinstance(model, Bert):
        return Encoder(model), bert.inputs_of(model, batch)
    if isinstance(model, ResNet):
        return Residual(model), resnet.inputs_of(model, batch)
    ids = torch.zeros(batch, model.sequence, dtype=torch.long)
    return decoder_of(model), (ids, ids)
