"""Models of other kinds at tiny size, as their papers and tutorials write them."""

from __future__ import annotations

import torch
from support.public.graph_networks import GRAPH_NETWORKS
from torch import Tensor, nn
from torch.nn import functional as f

SAMPLES, WORDS = 4, 24


class Block(nn.Module):
    """Two convolutions around group norms, with a residual connection."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(2, channels), nn.GroupNorm(2, out)])
        self.convs = nn.ModuleList(
            [nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)]
        )
        self.past = nn.Conv2d(channels, out, 1)
        self.time = nn.Linear(8, out)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.convs[0](f.silu(self.norms[0](x))) + self.time(time)[:, :, None, None]
        return self.convs[1](f.dropout(f.silu(self.norms[1](h)), 0.1)) + self.past(x)


class UNet(nn.Module):
    """The U-Net of a diffusion model: down, attention over places, and up with skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down, self.middle, self.up = Block(8, 16), Block(16, 16), Block(24, 8)
        self.shrink = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.norm, self.last = nn.GroupNorm(2, 16), nn.Conv2d(8, 3, 3, padding=1)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angle = time[:, None] * torch.exp(-torch.arange(4) / 2)
        time = torch.cat([angle.sin(), angle.cos()], 1)
        noise = torch.randn_like(x)
        first = self.first(x + noise)
        h = self.middle(self.attended(self.down(self.shrink(first), time)), time)
        wide = f.interpolate(h, scale_factor=2.0, mode="nearest")
        return f.mse_loss(self.last(self.up(torch.cat([wide, first], 1), time)), noise)

    def attended(self, x: Tensor) -> Tensor:
        rows = self.norm(x).flatten(2).mT
        q, k, v = self.qkv(rows).view(*rows.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = f.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(mixed).mT.reshape(x.shape)


class Recurrent(nn.Module):
    """A language model of two layers of LSTM or GRU, whose table is its head too."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 8)
        self.layers = kind(8, 8, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.layers(self.table(ids[:, :-1]))
        return f.cross_entropy(self.head(states).flatten(0, 1), ids[:, 1:].flatten())


class GraphNetwork(nn.Module):
    """Two rounds of messages along edges, added up at their ends and divided by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = nn.ModuleList([nn.Linear(12, 6), nn.Linear(12, 6)])
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        source, target = edges
        count = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target))).clamp(min=1)
        for layer in self.rounds:
            sent = torch.relu(x[source])
            into = torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(sent), sent)
            x = torch.tanh(layer(torch.cat([x, into / count[:, None]], 1)))
        return f.cross_entropy(self.head(x), labels)


class Recommender(nn.Module):
    """Bags of ids, products of pairs of features, and a click."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(10, 4, mode=m) for m in ("sum", "mean")])
        self.dense, self.top = nn.Linear(5, 4), nn.Linear(7, 1)

    def forward(self, dense: Tensor, first: Tensor, second: Tensor, click: Tensor) -> Tensor:
        x = torch.relu(self.dense(dense))
        features = torch.stack([x, self.bags[0](first), self.bags[1](second)], 1)
        pairs = features @ features.mT
        rows, columns = torch.tril_indices(3, 3, -1)
        score = self.top(torch.cat([x, pairs[:, rows, columns]], 1)).squeeze(1)
        return f.binary_cross_entropy_with_logits(score, click)


def ids(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape)


OTHERS = {
    "u-net": lambda: (UNet(), (torch.randn(SAMPLES, 3, 8, 8), torch.rand(SAMPLES))),
    "lstm": lambda: (Recurrent(nn.LSTM), (ids(WORDS, SAMPLES, 6),)),
    "gru": lambda: (Recurrent(nn.GRU), (ids(WORDS, SAMPLES, 6),)),
    "graph network": lambda: (
        GraphNetwork(),
        (torch.randn(7, 6), ids(7, 2, 12), ids(3, 7)),
    ),
    "recommender": lambda: (
        Recommender(),
        (torch.randn(SAMPLES, 5), ids(10, SAMPLES, 3), ids(10, SAMPLES, 2), torch.ones(SAMPLES)),
    ),
    **GRAPH_NETWORKS,
}
