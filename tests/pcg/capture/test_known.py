"""Branches on constants are followed. Branches on other values are refused by their line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.cases import a_third
from support.public.compared import compared
from torch import Tensor, nn
from torch.nn import functional as f

from pcg.errors import InputError


class Choosing(nn.Module):
    """Takes one branch or the other."""

    def __init__(self, chooses: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.register_buffer("offset", torch.zeros(1))
        self.chooses = chooses

    def forward(self, x: Tensor) -> Tensor:
        h = self.head(x)
        return (h.exp() if self.chooses(self, x) else h.square()).mean()


def places(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device)


def shifted(start: int) -> Callable[[nn.Module, Tensor], object]:
    def chooses(_: nn.Module, x: Tensor) -> object:
        mask = torch.ones(x.shape)
        mask[:, 0] = start
        row = mask[1]
        row.mul_(2)
        return mask.sum().item() > 2 * len(x)

    return chooses


KNOWN: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "a place": lambda m, x: places(x)[0] > 0,
    "not a place": lambda m, x: (places(x) == 2).any(),
    "a number": lambda m, x: places(x).max().item() == len(x) - 1,
    "several": lambda m, x: sum(torch.linspace(0, 1, 3).tolist()) > 1,
    "equal": lambda m, x: torch.equal(places(x), torch.tensor([0, 1, 2])),
    "as many as rows": lambda m, x: torch.ones_like(x).sum() > 11,
    "changed": shifted(0),
    "changed otherwise": shifted(9),
    "a part of a list": lambda m, x: torch.stack([places(x), places(x)]).split(1)[1].sum() > 2,
}
VALUES: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "an input": lambda m, x: x[0, 0] > 0,
    "a parameter": lambda m, x: m.get_parameter("head.weight")[0, 0] > 0,
    "a buffer": lambda m, x: (m.get_buffer("offset") + 1) > 0,
    "a random number": lambda m, x: torch.randn(1) > 0,
    "memory": lambda m, x: torch.empty(1) > 0,
    "an input beside a constant": lambda m, x: (places(x)[:, None] + x).sum() > 0,
    "what an input was written into": lambda m, x: torch.zeros(3).copy_(x[:, 0]).sum() > 0,
    "a view of that": lambda m, x: written(x)[0, 0] > 0,
    "dropout of a constant": lambda m, x: f.dropout(torch.ones(9)).sum() > 9,
}


def written(x: Tensor) -> Tensor:
    base = torch.zeros(x.shape)
    view = base[0]
    view += x[0]
    return base


@pytest.mark.parametrize("case", a_third(KNOWN))
def test_a_choice_by_a_constant_is_followed(case: str) -> None:
    captured, _ = compared(Choosing(KNOWN[case]), (torch.randn(3, 4),))
    assert captured.opaque == ()


@pytest.mark.parametrize("case", a_third(VALUES))
def test_a_choice_by_values_is_refused_by_its_line(case: str) -> None:
    with pytest.raises(InputError, match=r"test_known.py: line \d+: branches on the values"):
        compared(Choosing(VALUES[case]), (torch.randn(3, 4),))


def test_a_constant_that_is_changed_in_place_is_changed_in_the_graph_too() -> None:
    class Masked(Choosing):
        def forward(self, x: Tensor) -> Tensor:
            mask = torch.zeros(x.shape)
            mask[:, 1:] = 2.0
            mask[0] += 1.0
            if mask.sum() > 9:
                mask[1].mul_(3.0)
            return (self.head(x) * mask).square().mean()

    compared(Masked(KNOWN["a place"]), (torch.randn(3, 4),))


def test_random_numbers_are_as_if_nothing_had_been_tried() -> None:
    torch.manual_seed(0)
    expected = torch.randn(2)
    torch.manual_seed(0)
    module = Choosing(VALUES["dropout of a constant"])
    torch.manual_seed(0)
    with pytest.raises(InputError):
        compared(module, (torch.zeros(3, 4),))
    assert torch.equal(torch.randn(2), expected)
