"""Models that are in no package, written as their papers and repositories write them."""

from __future__ import annotations

from itertools import pairwise
from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional as f


class Classified(nn.Module):
    """Cross entropy of the output of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return f.cross_entropy(self.model(x), labels)


class Residual(nn.Module):
    """Two convolutions after group norms. The time is added between them."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, channels), nn.GroupNorm(32, out)])
        self.first = nn.Conv2d(channels, out, 3, padding=1)
        self.second = nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.past = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.first(f.silu(self.norms[0](x))) + self.time(f.silu(time))[:, :, None, None]
        return self.past(x) + self.second(f.silu(self.norms[1](h)))


class Attention(nn.Module):
    """Attention of places to places, or of places to words."""

    def __init__(self, width: int, read: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(read, width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, read: Tensor) -> Tensor:
        parts = (self.query(x), self.key(read), self.value(read))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        return self.out(f.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Attention to places, then to words, then a gated layer, at each place of an image."""

    def __init__(self, width: int, words: int, heads: int = 8) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width, eps=1e-6)
        self.into, self.back = (nn.Conv2d(width, width, 1) for _ in range(2))
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.own, self.cross = Attention(width, width, heads), Attention(width, words, heads)
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        rows = self.into(self.norm(x)).flatten(2).mT
        rows = rows + self.own(seen := self.norms[0](rows), seen)
        rows = rows + self.cross(self.norms[1](rows), words)
        h, gate = self.wide(self.norms[2](rows)).chunk(2, -1)
        rows = rows + self.narrow(h * f.gelu(gate))
        return x + self.back(rows.mT.reshape(x.shape))


class Level(nn.Module):
    """A residual block, and attention if the images are small enough."""

    def __init__(self, channels: int, out: int, time: int, words: int | None) -> None:
        super().__init__()
        self.residual = Residual(channels, out, time)
        self.attention = None if words is None else Transformer(out, words)

    def forward(self, x: Tensor, time: Tensor, words: Tensor) -> Tensor:
        h = self.residual(x, time)
        return h if self.attention is None else self.attention(h, words)


class UNet(nn.Module):
    """The U-Net of Stable Diffusion 1.5, with the loss of the noise that it predicts (Rombach et
    al., 2022)."""

    def __init__(
        self, widths: tuple[int, ...] = (320, 640, 1280, 1280), words: int = 768, steps: int = 1000
    ) -> None:
        super().__init__()
        first, deepest, time = widths[0], widths[-1], 4 * widths[0]
        self.width = first
        self.time = nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
        self.register_buffer("kept", torch.linspace(0.9991, 0.0047, steps))
        self.into = nn.Conv2d(4, first, 3, padding=1)
        self.down, self.shrink, skipped = nn.ModuleList(), nn.ModuleList(), [first]
        channels = first
        for depth, width in enumerate(widths):
            read = words if depth < len(widths) - 1 else None
            for before in (channels, width):
                self.down.append(Level(before, width, time, read))
                skipped.append(width)
            if read is not None:
                self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skipped.append(width)
            channels = width
        self.middle = Level(deepest, deepest, time, words)
        self.last = Residual(deepest, deepest, time)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for depth, width in reversed(list(enumerate(widths))):
            read = words if depth < len(widths) - 1 else None
            for _ in range(3):
                self.up.append(Level(channels + skipped.pop(), width, time, read))
                channels = width
            if depth:
                self.grow.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.out = nn.GroupNorm(32, first), nn.Conv2d(first, 4, 3, padding=1)

    def forward(self, x: Tensor, step: Tensor, words: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        kept = self.get_buffer("kept")[step][:, None, None, None]
        h = self.into(kept.sqrt() * x + (1 - kept).sqrt() * noise)
        time = self.time(sines(step, self.width))
        skipped = [h]
        for number, level in enumerate(self.down):
            skipped.append(h := level(h, time, words))
            if number % 2 and number // 2 < len(self.shrink):
                skipped.append(h := self.shrink[number // 2](h))
        h = self.last(self.middle(h, time, words), time)
        for number, level in enumerate(self.up):
            h = level(torch.cat([h, skipped.pop()], 1), time, words)
            if number % 3 == 2 and number // 3 < len(self.grow):
                h = self.grow[number // 3](f.interpolate(h, scale_factor=2.0, mode="nearest"))
        return f.mse_loss(self.out(f.silu(self.norm(h))), noise)


def sines(step: Tensor, width: int) -> Tensor:
    """Sines and cosines of step numbers."""
    numbers = torch.arange(width // 2, device=step.device)
    angle = step[:, None] * torch.exp(numbers * (-log(10_000) / (width // 2)))
    return torch.cat([angle.cos(), angle.sin()], 1)


class Language(nn.Module):
    """Two layers of LSTM over words (Zaremba et al., 2014)."""

    def __init__(self, words: int, width: int, dropout: float = 0.65) -> None:
        super().__init__()
        self.table, self.dropout = nn.Embedding(words, width), nn.Dropout(dropout)
        self.layers = nn.LSTM(width, width, num_layers=2, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.layers(self.dropout(self.table(ids[:, :-1])))
        return f.cross_entropy(self.head(self.dropout(states)).flatten(0, 1), ids[:, 1:].flatten())


class GraphNetwork(nn.Module):
    """Means of neighbours, added to the node itself (GraphSAGE; Hamilton et al., 2017)."""

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        ends = list(zip(widths, (*widths[1:], classes), strict=True))
        self.own = nn.ModuleList([nn.Linear(a, b) for a, b in ends])
        self.near = nn.ModuleList([nn.Linear(a, b, bias=False) for a, b in ends])

    def forward(self, x: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        source, target = edges
        ones = x.new_ones(target.shape)
        count = x.new_zeros(len(x)).index_add(0, target, ones).clamp(min=1)
        for number, (own, near) in enumerate(zip(self.own, self.near, strict=True)):
            sent = x.index_select(0, source)
            mean = torch.zeros_like(x).index_add(0, target, sent) / count[:, None]
            x = own(x) + near(mean)
            x = f.dropout(f.relu(x), 0.5) if number + 1 < len(self.own) else x
        return f.cross_entropy(x, labels)


CRITEO = (
    *(39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10),
    *(2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36),
)
"""Rows of the tables, at most 40 million each (MLPerf)."""


class DLRM(nn.Module):
    """Tables of ids, products of pairs of features, and a click (Naumov et al., 2019)."""

    def __init__(
        self,
        rows: tuple[int, ...] = CRITEO,
        bottom: tuple[int, ...] = (13, 512, 256, 128),
        top: tuple[int, ...] = (1024, 1024, 512, 256, 1),
    ) -> None:
        super().__init__()
        width, features = bottom[-1], len(rows) + 1
        self.bags = nn.ModuleList([nn.EmbeddingBag(n, width, mode="sum") for n in rows])
        pairs = features * (features - 1) // 2
        self.bottom, self.top = perceptron(bottom), perceptron((width + pairs, *top))[:-1]

    def forward(self, dense: Tensor, ids: Tensor, click: Tensor) -> Tensor:
        x = self.bottom(dense)
        bags = [bag(ids[:, n : n + 1]) for n, bag in enumerate(self.bags)]
        features = torch.stack([x, *bags], 1)
        count = features.shape[1]
        rows, columns = torch.tril_indices(count, count, -1, device=x.device)
        pairs = (features @ features.mT)[:, rows, columns]
        score = self.top(torch.cat([x, pairs], 1)).squeeze(1)
        return f.binary_cross_entropy_with_logits(score, click)


def perceptron(widths: tuple[int, ...]) -> nn.Sequential:
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers)
