"""Random numbers of every kind, drawn for the graph as for the module."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.cases import a_third
from torch import Tensor, nn
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint

from pcg.capture import capture
from pcg.graph.graph import DRAWN
from runtime.inputs.seeded import input_batch
from runtime.train.check import evaluate
from runtime.train.eager import compare_module

Function = Callable[[Tensor], Tensor]


class Noisy(nn.Module):
    """A function of the rows of a linear layer."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x)).square().sum()


def stochastic_depth(x: Tensor) -> Tensor:
    """Stochastic depth as in vision models: whole samples are dropped."""
    kept = 0.8 + torch.rand((x.shape[0], 1), dtype=x.dtype)
    return x + x.div(0.8) * kept.floor_()


def drop_path(x: Tensor) -> Tensor:
    kept = x.new_empty((x.shape[0], 1)).bernoulli_(0.7)
    return x + x * kept.div_(0.7)


def of_several_kinds(x: Tensor) -> Tensor:
    """Draws in another order than that of their names. One is not needed."""
    first = torch.randn_like(x)
    torch.rand(2)
    return f.dropout(x, 0.4) * torch.rand_like(x) + f.dropout(first, 0.2) * x


def layer_drop(x: Tensor) -> Tensor:
    """A random layer drop that never happens: a uniform number is never below 0."""
    return x * 3 if torch.rand([]) < 0.0 else x


DRAWS: dict[str, Function] = {
    "rand": lambda x: x * torch.rand(3, 4),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x * torch.randn(3, 4),
    "randn_like": lambda x: x + 0.1 * torch.randn_like(x),
    "normal": lambda x: x * torch.normal(1.0, 2.0, (3, 4)),
    "normal_": lambda x: x * torch.empty_like(x).normal_(1.0, 2.0),
    "uniform_": lambda x: x * torch.empty_like(x).uniform_(1, 2),
    "bernoulli_": lambda x: x * torch.empty_like(x).bernoulli_(0.3),
    "bernoulli": lambda x: x * torch.bernoulli(torch.sigmoid(x)),
    "exponential_": lambda x: x * torch.empty_like(x).exponential_(2.0),
    "gumbel_softmax": lambda x: f.gumbel_softmax(x, tau=0.7),
    "hard gumbel_softmax": lambda x: f.gumbel_softmax(x, hard=True),
    "dropout": lambda x: f.dropout(x, 0.3),
    "dropout of nothing": lambda x: f.dropout(x, 0.0),
    "dropout of all": lambda x: x + f.dropout(x, 1.0),
    "dropout in place": lambda x: f.dropout(x * 2, 0.3, inplace=True),
    "dropout2d": lambda x: f.dropout2d(x.view(3, 2, 2, 1), 0.3),
    "dropout1d": lambda x: f.dropout1d(x.view(3, 2, 2), 0.3),
    "alpha_dropout": lambda x: f.alpha_dropout(x, 0.3, training=True),
    "feature_alpha_dropout": lambda x: f.feature_alpha_dropout(x, 0.3, training=True),
    "rrelu": lambda x: f.rrelu(x, training=True),
    "attention": lambda x: f.scaled_dot_product_attention(x, x, x, dropout_p=0.2),
    "causal attention": lambda x: f.scaled_dot_product_attention(
        *(x.view(1, 1, 3, 4),) * 3, dropout_p=0.2, is_causal=True
    ),
    "attention under a mask": lambda x: f.scaled_dot_product_attention(
        x, x, x, torch.tensor([[True, False, True]] * 3), dropout_p=0.2, scale=0.3
    ),
    "attention without shares": lambda x: (
        x + f.scaled_dot_product_attention(x, x, x, dropout_p=1.0)
    ),
    "stochastic depth": stochastic_depth,
    "drop path": drop_path,
    "several": of_several_kinds,
    "layer drop": layer_drop,
    "noise without gradients": lambda x: x * f.dropout(x.detach(), 0.5),
    "randint": lambda x: x * torch.randint(0, 3, x.shape),
    "randint of negative numbers": lambda x: x * torch.randint(-3, 4, (3, 1)),
    "randint_like": lambda x: x * torch.randint_like(x, 5),
    "ids that are drawn": lambda x: x[:, torch.randint(0, 4, (7,))],
    "randperm": lambda x: x[torch.randperm(3)] * torch.arange(12).view(3, 4),
    "one by its weight": lambda x: x * torch.multinomial(f.softmax(x, 1), 1),
    "several by their weights": lambda x: x.gather(1, torch.multinomial(f.softmax(x, 1), 3)) ** 2,
    "the same again": lambda x: x.gather(1, torch.multinomial(f.softmax(x, 1), 9, True)) ** 2,
    "categories": lambda x: torch.distributions.Categorical(logits=x).sample()[:, None] * x,
}


@pytest.mark.parametrize("name", a_third(DRAWS))
def test_random_numbers_are_used_as_in_the_module(name: str) -> None:
    torch.manual_seed(0)
    module, rows = Noisy(DRAWS[name]), (torch.zeros(3, 4),)
    comparison = compare_module(module, rows, capture(module, rows), "model")
    assert comparison.error is not None, comparison.reason
    assert comparison.error < 1e-12


REFUSED: dict[str, Function] = {
    "randint": lambda x: x * torch.randint(0, 1 << 25, (1,)),
    "normal": lambda x: torch.normal(x, 1.0),
    "poisson": lambda x: torch.poisson(x.abs()),
    "geometric": lambda x: x * torch.empty_like(x).geometric_(0.5),
    "cauchy": lambda x: x * torch.empty_like(x).cauchy_(),
}


@pytest.mark.parametrize("name", a_third(REFUSED))
def test_unsupported_random_functions_are_refused_by_their_line(name: str) -> None:
    with pytest.raises(Exception, match=rf"test_random\.py: line \d+: aten\.{name}.*draws random"):
        capture(Noisy(REFUSED[name]), (torch.zeros(3, 4),))


def test_a_branch_by_a_random_number_is_refused() -> None:
    module = Noisy(lambda x: x * 3 if torch.rand([]) < 0.5 else x)
    with pytest.raises(Exception, match=r"line \d+: branches on the values of a tensor") as raised:
        capture(module, (torch.zeros(3, 4),))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("reentrant", [False, True])
def test_numbers_of_a_checkpoint_are_drawn_once(reentrant: bool) -> None:
    """The checkpoint draws them again in the backward pass, and they have to be the same."""
    module = Noisy(lambda x: checkpoint(f.dropout, x, 0.5, use_reentrant=reentrant) ** 2)
    rows = (torch.zeros(3, 4),)
    comparison = compare_module(module, rows, capture(module, rows), "model")
    assert comparison.error is not None, comparison.reason
    assert comparison.error < 1e-12


def test_unused_random_numbers_of_equal_shape_are_not_compared() -> None:
    """Of two draws of one shape it is not known which one is unused."""
    module = Noisy(lambda x: (torch.rand_like(x), x * torch.rand_like(x))[1])
    rows = (torch.zeros(3, 4),)
    comparison = compare_module(module, rows, capture(module, rows), "model")
    assert comparison.error is None
    assert "more random numbers than its graph" in comparison.reason


class Alone(nn.Module):
    """The random numbers of a function, without a module."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * self.weight).sum(), self.function() * self.weight


SIZE = 40_000
MOMENTS: dict[str, tuple[Callable[[], Tensor], float, float]] = {
    "rand": (lambda: torch.rand(SIZE), 0.5, 12**-0.5),
    "uniform": (lambda: torch.empty(SIZE).uniform_(-1, 3), 1.0, 4 * 12**-0.5),
    "randn": (lambda: torch.randn(SIZE), 0.0, 1.0),
    "normal": (lambda: torch.empty(SIZE).normal_(3.0, 2.0), 3.0, 2.0),
    "bernoulli": (lambda: torch.empty(SIZE).bernoulli_(0.2), 0.2, 0.4),
    "exponential": (lambda: torch.empty(SIZE).exponential_(2.0), 0.5, 0.5),
}
"""Functions with the mean and the standard deviation of their distribution."""


@pytest.mark.parametrize("name", a_third(MOMENTS))
def test_random_numbers_have_the_moments_of_their_distribution(name: str) -> None:
    function, mean, deviation = MOMENTS[name]
    graph = capture(Alone(function), (torch.ones(2),)).graph
    leaves = {n.leaf.name: torch.ones(n.leaf.shape, dtype=torch.float64) for n in graph.leaves}
    (drawn,) = (n.leaf for n in graph.leaves if n.leaf.name.startswith(DRAWN))
    sample = evaluate(graph, leaves | {drawn.name: input_batch(drawn, 0, 0)})[1]
    near = 5 * deviation / SIZE**0.5
    assert sample.mean().item() == pytest.approx(mean, abs=near)
    assert sample.std().item() == pytest.approx(deviation, abs=2 * near)
    if name == "rand":
        assert 0 <= sample.min() < sample.max() < 1
