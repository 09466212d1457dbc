"""Models of users, items and words by tables."""

from __future__ import annotations

import torch
from support.public.by_hand.inputs import Maker, ids, rows
from torch import Tensor, nn
from torch.nn import functional as f

USERS, ITEMS = 100, 200


class Factorisation(nn.Module):
    """A rating by a product of a user's and an item's vector, with biases and decay."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8)
        self.user_bias, self.item_bias = nn.Embedding(USERS, 1), nn.Embedding(ITEMS, 1)
        self.mean = nn.Parameter(torch.tensor(3.0))

    def forward(self, user: Tensor, item: Tensor, rating: Tensor) -> Tensor:
        a, b = self.users(user), self.items(item)
        biases = self.user_bias(user).squeeze() + self.item_bias(item).squeeze() + self.mean
        decay = 1e-4 * (a.norm() ** 2 + b.norm() ** 2)
        return f.mse_loss((a * b).sum(-1) + biases, rating) + decay


class PersonalRanking(nn.Module):
    """Bayesian personalised ranking (BPR): a chosen item is above another."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8)

    def forward(self, user: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
        difference = self.items(chosen) - self.items(other)
        return -f.logsigmoid((self.users(user) * difference).sum(1)).mean()


class NeuralFiltering(nn.Module):
    """Neural collaborative filtering: a network of a user's and an item's vector."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8)
        self.network = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
        self.loss = nn.BCEWithLogitsLoss()

    def forward(self, user: Tensor, item: Tensor, click: Tensor) -> Tensor:
        pair = torch.cat([self.users(user), self.items(item)], -1)
        return self.loss(self.network(pair).squeeze(-1), click.float())


class FactorisationMachine(nn.Module):
    """Products of all pairs of features by squares of sums."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.weights = nn.Embedding(100, 8), nn.EmbeddingBag(100, 1, mode="sum")

    def forward(self, features: Tensor, click: Tensor) -> Tensor:
        rows = self.vectors(features)
        pairs = rows.sum(1).square() - rows.square().sum(1)
        score = self.weights(features).squeeze(1) + 0.5 * pairs.sum(1)
        return f.binary_cross_entropy(torch.sigmoid(score), click.float())


class WordVectors(nn.Module):
    """Word2vec with negative samples, and sparse gradients of both tables."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Embedding(100, 8, sparse=True)
        self.neighbours = nn.Embedding(100, 8, sparse=True)

    def forward(self, centre: Tensor, neighbour: Tensor, others: Tensor) -> Tensor:
        word = self.centres(centre)
        near = f.logsigmoid((word * self.neighbours(neighbour)).sum(-1))
        products = torch.bmm(self.neighbours(others), word.unsqueeze(2)).squeeze(2)
        return -(near + f.logsigmoid(-products).sum(1)).mean()


RECOMMENDERS: dict[str, Maker] = {
    "matrix-factorisation": lambda: (Factorisation(), (ids(USERS), ids(ITEMS), rows())),
    "bpr": lambda: (PersonalRanking(), (ids(USERS), ids(ITEMS), ids(ITEMS))),
    "neural-filtering": lambda: (NeuralFiltering(), (ids(USERS), ids(ITEMS), ids(2))),
    "factorisation-machine": lambda: (FactorisationMachine(), (ids(100, 6), ids(2))),
    "word2vec": lambda: (WordVectors(), (ids(100), ids(100), ids(100, 5))),
}
