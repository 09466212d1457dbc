"""Graph networks at tiny size, as their papers and libraries write them. Their inputs are nodes,
and edges given by the numbers of their ends. Messages go along edges and are added up."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as f

NODES, EDGES, WIDTH, CLASSES = 7, 12, 6, 3


def for_each(ids: Tensor, like: Tensor) -> Tensor:
    """Ids of rows, repeated for each element of a row."""
    return ids.view(-1, *[1] * (like.dim() - 1)).expand_as(like)


class Convolution(nn.Module):
    """Sums of a node and its neighbours, divided by the roots of their degrees (GCN)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)])

    def forward(
        self, x: Tensor, edges: Tensor, weights: Tensor, labels: Tensor, seen: Tensor
    ) -> Tensor:
        itself = torch.arange(len(x))
        source, target = torch.cat([edges, itself.expand(2, -1)], 1)
        weights = torch.cat([weights.abs(), torch.ones(len(x))])
        degree = torch.zeros(len(x)).scatter_add_(0, target, weights)
        root = degree.pow(-0.5).masked_fill(degree == 0, 0.0)
        factors = (root[source] * weights * root[target])[:, None]
        first, last = self.layers
        x = torch.zeros(len(x), 8).index_add_(0, target, first(x).index_select(0, source) * factors)
        x = torch.zeros(len(x), CLASSES).index_add_(0, target, last(x.relu())[source] * factors)
        losses = f.cross_entropy(x, labels, reduction="none") * seen.square()
        return losses.sum() / seen.square().sum()


class Sage(nn.Module):
    """Means of neighbours, and then their maximum (GraphSAGE)."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(WIDTH, 8), nn.Linear(8, 8)])
        self.other = nn.ModuleList([nn.Linear(WIDTH, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        for kind, own, other in zip(("mean", "amax"), self.own, self.other, strict=True):
            sent, into = x[source], torch.zeros_like(x)
            at = for_each(target, sent)
            received = into.scatter_reduce(0, at, sent, kind, include_self=False)
            x = f.dropout(torch.relu(own(x) + other(received)), 0.1)
        return f.cross_entropy(self.head(x), labels)


class Messages(nn.Module):
    """Messages that a network makes from both ends and from the features of an edge (MPNN)."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * WIDTH + 2, 8), nn.SiLU(), nn.Linear(8, 8))
        self.update, self.head = nn.Linear(WIDTH + 8, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edges: Tensor, held: Tensor, labels: Tensor) -> Tensor:
        source, target = edges
        for _ in range(2):
            sent = self.message(torch.cat([x[source], x[target], held], 1))
            into = torch.zeros(len(x), sent.shape[1]).index_add(0, target, sent)
            x = x + self.update(torch.cat([x, into], 1))
        return f.cross_entropy(self.head(x), labels)


class Attention(nn.Module):
    """Neighbours with weights by a softmax over those of a node, in two heads (GAT)."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.head = nn.Linear(WIDTH, 2 * 4, bias=False), nn.Linear(2 * 4, CLASSES)
        self.of_source = nn.Parameter(torch.randn(2, 4) / 4)
        self.of_target = nn.Parameter(torch.randn(2, 4) / 4)

    def forward(self, x: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        source, target = edges
        held = self.values(x).view(-1, 2, 4)
        of_source, of_target = (held * w for w in (self.of_source, self.of_target))
        score = f.leaky_relu(of_source.sum(-1)[source] + of_target.sum(-1)[target], 0.2)
        least = torch.full((len(x), 2), float("-inf"))
        most = least.scatter_reduce(0, for_each(target, score), score.detach(), "amax")
        share = (score - most[target]).exp()
        total = torch.zeros(len(x), 2).index_add(0, target, share)
        share = share / (total[target] + 1e-16)
        received = torch.zeros_like(held).index_add(0, target, held[source] * share[..., None])
        return f.cross_entropy(self.head(f.elu(received.flatten(1))), labels)


class OfGraphs(nn.Module):
    """Sums of neighbours, batch norms, and the mean over the nodes of each graph (GIN)."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.bonds = nn.Embedding(5, WIDTH), nn.Embedding(3, WIDTH)
        self.layer = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.epsilon, self.head = nn.Parameter(torch.zeros(1)), nn.Linear(8, 1)

    def forward(
        self, kinds: Tensor, edges: Tensor, bonds: Tensor, graphs: Tensor, wanted: Tensor
    ) -> Tensor:
        x, (source, target) = self.kinds(kinds), edges
        sent = torch.relu(x[source] + self.bonds(bonds))
        into = torch.zeros_like(x).scatter_add_(0, target.unsqueeze(-1).expand_as(sent), sent)
        x = self.layer((1 + self.epsilon) * x + into)
        total = x.new_zeros(len(wanted), 8).scatter_add_(0, graphs[:, None].expand_as(x), x)
        count = torch.zeros(len(wanted)).scatter_add_(0, graphs, torch.ones(len(x)))
        actual = self.head(total / count.clamp(min=1)[:, None]).squeeze(1)
        return f.mse_loss(actual, wanted)


def nodes() -> Tensor:
    return torch.randn(NODES, WIDTH)


def numbers(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape)


def edges() -> Tensor:
    return numbers(NODES, 2, EDGES)


def labels() -> Tensor:
    return numbers(CLASSES, NODES)


GRAPH_NETWORKS = {
    "message passing": lambda: (
        Messages(),
        (nodes(), edges(), torch.randn(EDGES, 2), labels()),
    ),
    "graph convolution": lambda: (
        Convolution(),
        (nodes(), edges(), torch.rand(EDGES), labels(), torch.ones(NODES)),
    ),
    "graphsage": lambda: (Sage(), (nodes(), edges(), labels())),
    "graph attention": lambda: (Attention(), (nodes(), edges(), labels())),
    "several graphs": lambda: (
        OfGraphs(),
        (numbers(5, NODES), edges(), numbers(3, EDGES), numbers(3, NODES), torch.randn(3)),
    ),
}
