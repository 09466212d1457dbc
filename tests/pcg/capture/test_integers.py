"""Integers in models: computed ids, ignored labels, masks, and padding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.cases import a_third
from support.graphs.capturing import assert_agrees
from support.graphs.torch_functions import default_dtype
from torch import Tensor, nn
from torch.nn import functional as f

from pcg.capture import Captured, capture
from pcg.plan.text import parse_graph, print_graph
from runtime.train.eager import compare_module

IDS = torch.tensor([[1, 0, 3, 2], [2, 2, 4, 1]])
WITH_IGNORED = torch.tensor([[1, -100, 3, 2], [2, -100, -100, 1]])


@pytest.fixture(autouse=True)
def double():
    with default_dtype(torch.float64):
        yield


Loss = Callable[[Tensor, Tensor], Tensor]


class Language(nn.Module):
    """Rows of a table by ids, projected. ``loss`` makes a loss of the scores and the other
    inputs."""

    def __init__(self, loss: Loss, padding: int | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4, padding_idx=padding)
        self.head = nn.Linear(4, 6)
        self.loss = loss

    def forward(self, ids: Tensor, other: Tensor) -> Tensor:
        return self.loss(self.head(self.table(ids)), other)


def captured(loss: Loss, other: Tensor, padding: int | None = None) -> Captured:
    """Capture a model and check that its graph agrees with it. Nothing is opaque."""
    torch.manual_seed(0)
    made = assert_agrees(Language(loss, padding), (IDS, other))
    assert made.opaque == ()
    assert parse_graph(print_graph(made.graph)) == made.graph
    return made


def entropy(scores: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    flat = scores.flatten(0, 1), labels.flatten()
    return f.cross_entropy(*flat, ignore_index=ignore_index)


def shifted(scores: Tensor, labels: Tensor) -> Tensor:
    """The shift of language models: the label of a place is the id of the next one."""
    padded = f.pad(labels, (0, 1), value=-100)
    return entropy(scores, padded[..., 1:].contiguous(), ignore_index=-100)


LOSSES: dict[str, tuple[Loss, Tensor]] = {
    "shifted labels": (shifted, IDS),
    "some are ignored": (entropy, WITH_IGNORED),
    "a class is ignored": (lambda x, y: entropy(x, y, ignore_index=2), IDS),
    "filled labels": (lambda x, y: entropy(x, y.masked_fill(y == 2, -100)), IDS),
    "a sum of some": (
        lambda x, y: f.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="sum"),
        WITH_IGNORED,
    ),
    "a mask of numbers": (lambda x, y: (x * y.unsqueeze(-1)).sum() / y.sum(), IDS),
    "a mask of choices": (lambda x, y: x[..., 0].masked_fill(y > 2, 0.0).sum(), IDS),
    "computed ids": (lambda x, y: (f.embedding(y * 2 - 1 + (y < 1) * 2, x[0]) ** 2).sum(), IDS % 2),
    "a quotient of integers": (lambda x, y: (f.embedding(y // 2, x[0]) ** 2).sum(), IDS),
    "types of tokens": (lambda x, y: (x * y.to(x.dtype).unsqueeze(-1)).sum(), IDS),
}


@pytest.mark.parametrize("name", a_third(LOSSES))
def test_integer_operations_agree_with_torch(name: str) -> None:
    captured(*LOSSES[name])


def test_all_labels_count_if_none_can_be_ignored() -> None:
    made = captured(entropy, IDS)
    assert [node.name for node in made.graph.nodes].count("divide") == 0
    (labels,) = (node.leaf for node in made.graph.leaves if node.leaf.name == made.inputs[1])
    assert (labels.least, labels.below) == (0, 6)


def test_labels_begin_at_the_lowest_label_of_the_example() -> None:
    made = captured(entropy, WITH_IGNORED)
    (labels,) = (node.leaf for node in made.graph.leaves if node.leaf.name == made.inputs[1])
    assert (labels.least, labels.below) == (-100, 6)
    assert "from -100 below 6" in print_graph(made.graph)


def test_a_row_of_padding_gets_no_gradient() -> None:
    captured(lambda x, y: (x * x).sum() + y.sum(), IDS, 2)


def test_integers_of_the_module_and_of_the_example() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))
            self.register_buffer("places", torch.tensor([4, 9, 1]))

        def forward(self, counts: Tensor) -> Tensor:
            return (self.weight * self.get_buffer("places") * counts).sum()

    made = assert_agrees(Counted(), (torch.tensor([7, 0, 3]),))
    bounds = {node.leaf.name: node.leaf.below for node in made.graph.leaves}
    assert bounds == {"weight": None, "places": 10, "counts": 8}


def attended(options: dict[str, object], heads: int = 4) -> Captured:
    class Attended(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Parameter(torch.randn(2, 4, 5, 3))
            self.k = nn.Parameter(torch.randn(2, heads, 5, 3))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = f.scaled_dot_product_attention(
                self.q,
                self.k,
                self.k,
                **options,  # pyright: ignore[reportArgumentType]
            )
            return (result * x).sum()

    torch.manual_seed(1)
    return assert_agrees(Attended(), (torch.randn(2, 4, 5, 3),))


def test_keys_that_heads_share() -> None:
    assert attended({"enable_gqa": True}, heads=2).opaque == ()


@pytest.mark.parametrize("made", [lambda: torch.ones(5, 5).tril(), lambda: torch.ones(5, 5).triu()])
def test_masks_that_choose(made: Callable[[], Tensor]) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Parameter(torch.randn(2, 4, 5, 3))

        def forward(self, x: Tensor) -> Tensor:
            mask = made().bool()[None, None].expand(2, 1, 5, 5)
            return (f.scaled_dot_product_attention(self.q, self.q, self.q, mask) * x).sum()

    torch.manual_seed(1)
    names = [n.name for n in assert_agrees(Masked(), (torch.randn(2, 4, 5, 3),)).graph.nodes]
    # A causal mask is recognised, however it is made.
    assert ("causal_attention" in names) == bool(made()[1, 0])


def test_a_map_over_a_batch_is_seen_through() -> None:
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(4)
            pairs = torch.vmap(lambda i: torch.vmap(lambda j: j <= i)(places))(places)
            return ((x * self.weight).unsqueeze(-1) * pairs).sum()

    made = assert_agrees(Mapped(), (torch.randn(3, 4),))
    assert "lower_triangle" in {node.name for node in made.graph.nodes}
    assert made.opaque == ()


def test_a_constant_that_is_no_buffer_is_one_line() -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(81))

        def forward(self, x: Tensor) -> Tensor:
            return (self.weight * torch.tensor([i * i for i in range(81)]) * x).sum()

    with pytest.raises(Exception, match="constant of 81 numbers, which is no buffer"):
        capture(Held(), (torch.randn(81),))


class Steps(nn.Module):
    """A row of a table for a random step of each sample, as diffusion models have."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.randint(0, 6, (x.shape[0],))
        return (x * self.table(steps)).square().sum() + (steps + 1).sum() * 0.0


class Counted(nn.Module):
    """How often each place is the greatest, up to the upper end, which counts in the last bin."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = bins
        self.layer = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.layer(x).softmax(-1)
        places = scores.topk(2, -1).indices.flatten().to(x.dtype)
        counts = torch.histc(places, bins=self.bins, min=0, max=self.bins)
        return (counts * scores.sum(0)[: self.bins]).sum()


class Sparse(nn.Module):
    """A table whose gradient torch keeps as a list of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return (self.table(IDS).sum(0) * x).square().mean()


@pytest.mark.parametrize("make", [Steps, lambda: Counted(5), lambda: Counted(3), Sparse])
def test_integers_that_a_model_draws_or_counts(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, inputs = make().double(), (torch.randn(4, 4, dtype=torch.float64),)
    made = capture(module, inputs)
    comparison = compare_module(module, inputs, made, "model")
    assert made.opaque == ()
    assert comparison.error is not None, comparison.reason
    assert comparison.error < 1e-12
