"""Functions of torch as equations, and rare arguments of these: values and gradients agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pytest
import torch
from support.graphs.torch_functions import default_dtype
from support.torch_release import extremes
from torch import Tensor, nn
from torch.nn import functional as f

from pcg.capture import capture
from pcg.errors import InputError
from runtime.train.eager import compare_module

SHAPE = (3, 7, 7)
NEAR = 1e-11
IDS = (1, 2, 2, 3, 0, 5, 4, 2, 6)
BEGINS = (0, 2, 2, 5)
"""The first row of each bag. One bag is empty."""
Function = Callable[[Tensor], Tensor]


def ids() -> Tensor:
    return torch.tensor(IDS)


def bags() -> Iterator[tuple[str, Function]]:
    def of(w: Tensor, mode: str, padding: int | None, begins: tuple[int, ...] | None) -> Tensor:
        given = ids().view(3, 3) if begins is None else ids()
        offsets = None if begins is None else torch.tensor(begins)
        last = begins is not None and begins[-1] == len(IDS)
        return f.embedding_bag(
            given, w[0], offsets, mode=mode, padding_idx=padding, include_last_offset=last
        )

    ways = {"rows": None, "offsets": BEGINS, "offsets and the end": (*BEGINS, len(IDS))}
    for mode in ("sum", "mean", "max"):
        for padding in (None, 2):
            for name, begins in ways.items():
                function = partial(of, mode=mode, padding=padding, begins=begins)
                yield f"{mode} of bags by {name}, padding {padding}", function


def seen(rows: int = 7) -> Tensor:
    """A mask of what queries may attend to: the third query attends to nothing, and none to the
    last two keys."""
    mask = torch.ones(rows, 7, dtype=torch.bool)
    mask[2] = False
    mask[:, 5:] = False
    return mask


def weighed(w: Tensor, shape: tuple[int, ...]) -> Tensor:
    weights = w[1, :2].flatten()[: len(IDS)].view(shape)
    offsets = torch.tensor(BEGINS) if len(shape) == 1 else None
    return f.embedding_bag(ids().view(shape), w[0], offsets, mode="sum", per_sample_weights=weights)


def greatest_of_many(w: Tensor) -> Tensor:
    """Zeros, many of which are the maximum or the minimum."""
    x, y = w.relu(), -w.relu()
    pairs = extremes(x)
    return (
        x.amin((0, 2))
        + y.amax((0, 2)) * y.amax((1, 2)).sum()
        + x.max()
        + x.min()
        + sum(part.sum() for part in pairs)
    )


def infinite(w: Tensor) -> Tensor:
    return w.masked_fill(~seen(), float("-inf"))


EQUATIONS: Mapping[str, Function] = {
    "attention of a query that sees nothing": lambda w: f.scaled_dot_product_attention(
        w, w, w, seen()
    ),
    "attention to what was before": lambda w: f.scaled_dot_product_attention(
        w, w, w, torch.ones(7, 7, dtype=torch.bool).tril(-1)
    ),
    "softmax of a row of infinities": lambda w: torch.ops.aten._safe_softmax.default(
        infinite(w), -1
    ),
    "softmax after filling": lambda w: w.masked_fill(w > 1, float("-inf")).softmax(-1),
    "greatest of many": greatest_of_many,
    "greatest of all": lambda w: w.max() * w.min(),
    "diagonal": lambda w: torch.diagonal(w, 1, -1, 0),
    "diagonal below": lambda w: torch.diagonal(w, -2, 1, 2),
    "trace": lambda w: torch.trace(w[0]),
    "product with a matrix for all": lambda w: w.unsqueeze(1) @ w[:1],
    "matrix and matrices": lambda w: w[0] @ w.unsqueeze(1),
    "vector and matrices": lambda w: w[0, 0] @ w,
    "bilinear": lambda w: f.bilinear(w[0], w[1], w, w[0, 0, :3]),
    "addmv": lambda w: torch.addmv(w[0, 0], w[0], w[1, 0], beta=2, alpha=3),
    "addbmm": lambda w: torch.addbmm(w[0], w, w.mT, beta=0.5, alpha=2),
    "one of each": lambda w: w[torch.arange(3), w[:, :, 0].argmax(1)],
    "two of each": lambda w: w[torch.arange(3)[:, None], w[:, :, 0].topk(2).indices],
    "lengths": lambda w: w.norm() + w.norm(dim=1) + w.norm(p=1, dim=(0, 1)),
    "length of nothing": lambda w: (w * 0).norm(dim=1) + w[:, 0],
    "filled": lambda w: f.hinge_embedding_loss(w, torch.where(w > 0, 1, -1)) * w,
    "copies of views": lambda w: torch.permute_copy(torch.transpose_copy(w, 0, 1), (2, 0, 1)),
    "of elements": lambda w: f.hardsigmoid(w) + f.hardswish(w) + f.mish(w) + f.logsigmoid(w),
    "of elements, without a derivative": lambda w: (
        torch.xlogy(w.relu(), w.relu()) + torch.special.entr(w.relu()) + torch.sinc(w.round())
    ),
    "far below": lambda w: torch.special.log_ndtr(w - 40),
    "linear algebra": lambda w: (
        torch.linalg.solve(w, w[:, :, :2]).sum(-1)
        + torch.linalg.eigvalsh(w + w.mT)
        + torch.linalg.svd(w, full_matrices=False)[1]
        + torch.logdet(w @ w.mT + 7 * torch.eye(7))[:, None] * torch.det(w)[:, None]
    ),
    "sizes changed": lambda w: (
        f.interpolate(w[None], size=(4, 3), mode="bilinear", antialias=True)
        + f.interpolate(w[None], size=(4, 3), mode="nearest-exact")
    ),
    "sum weighed": partial(weighed, shape=(9,)),
    "sum of rows weighed": partial(weighed, shape=(3, 3)),
    "filled where an index says it twice": lambda w: w.index_fill(
        1, torch.tensor([1, 1, 3]), w[0, 0, 0]
    ),
}
BAGS = dict(bags())
FEW = dict(list(BAGS.items())[1::5])
"""Some cases of each kind."""


class Every(nn.Module):
    """All cases at once, because an export takes long to begin. The loss weighs their elements."""

    def __init__(self, cases: Mapping[str, Function]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SHAPE, dtype=torch.float64))
        self.cases = cases

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        results = [function(self.weight + x) for function in self.cases.values()]
        sums = [(made.flatten() * torch.arange(made.numel()).sin()).sum() for made in results]
        return (torch.stack(sums).sum(), *sums, *results)


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param({**EQUATIONS, **FEW}, id="functions"),
        pytest.param(BAGS, id="bags", marks=pytest.mark.soak),
    ],
)
def test_values_and_gradients_are_those_of_torch(cases: Mapping[str, Function]) -> None:
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        example = (torch.randn(SHAPE, dtype=torch.float64),)
        captured = capture(module := Every(cases), example)
        comparison = compare_module(module, example, captured, "model")
    assert captured.opaque == ()
    assert comparison.error is not None, comparison.reason
    assert comparison.error < NEAR


@pytest.mark.parametrize("function", [lambda w: w[w > 0], lambda w: w.relu().nonzero() * w.sum()])
def test_sizes_by_values_are_one_line(function: Function) -> None:
    with pytest.raises(InputError, match=r"line \d+: .*a size that depends on values") as raised:
        capture(Every({"": function}), (torch.randn(SHAPE),))
    assert "\n" not in str(raised.value)
