"""Checks that only raise an error are taken to pass. Python's own numbers are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from random import random as drawn

import numpy as np
import pytest
import torch
from support.asserting import asserts, in_turn
from support.cases import a_third
from support.public.compared import compared
from torch import Tensor, nn

from pcg.capture import capture
from pcg.errors import InputError


class Checked(nn.Module):
    """A layer, and a function of its output."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x)).square().mean()


def raises(h: Tensor) -> Tensor:
    if torch.isnan(h).any():
        raise ValueError(f"not a number in {h.shape}")
    return h


def negated(h: Tensor) -> Tensor:
    if not torch.isfinite(h).all():
        raise ValueError("not finite")
    return h


def either(h: Tensor) -> Tensor:
    if torch.isnan(h).any() or torch.isinf(h).any():
        raise ValueError("not finite")
    return h


def handled(h: Tensor) -> Tensor:
    try:
        if h.sum() > 0:
            raise ValueError("positive")
    except ValueError:
        h = h * 2
    return h


def chosen(h: Tensor) -> Tensor:
    if h.sum() > 0:
        h = h * 2
    return h


@pytest.mark.parametrize("function", [raises, asserts, negated, either, in_turn])
def test_check_that_raises_is_taken_to_pass_and_noted(function: Callable[[Tensor], Tensor]) -> None:
    captured, _ = compared(Checked(function), (torch.randn(3, 4),))
    assert captured.notes
    for note in captured.notes:
        assert ".py: line " in note
        assert note.endswith("is a check that raises an error, and is taken to pass")


@pytest.mark.parametrize("function", [handled, chosen])
def test_branch_on_values_is_no_check_and_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(InputError, match=r"test_checks.py: line \d+: branches on the values"):
        capture(Checked(function), (torch.randn(3, 4),))


def layer_drop(share: float) -> Callable[[Tensor], Tensor]:
    return lambda h: h * 2 if random.uniform(0, 1) < share else h


DRAWN: dict[str, Callable[[Tensor], Tensor]] = {
    "random.uniform": layer_drop(0.5),
    "random.random": lambda h: h * random.random(),
    "random.randint": lambda h: h[random.randint(0, 1) :],
    "numpy.random.rand": lambda h: h * 2 if np.random.rand() > 0.5 else h,
    "numpy.random.beta": lambda h: h * np.random.beta(1.0, 1.0),
}


@pytest.mark.parametrize("name", a_third(DRAWN))
def test_random_numbers_of_other_libraries_are_refused_by_their_line(name: str) -> None:
    pattern = rf"test_checks.py: line \d+: draws a random number by {name}"
    with pytest.raises(InputError, match=pattern):
        capture(Checked(DRAWN[name]), (torch.randn(3, 4),))


def test_numbers_under_another_name_are_refused_too() -> None:
    with pytest.raises(InputError, match="draws a random number by random or numpy"):
        capture(Checked(lambda h: h * drawn()), (torch.randn(3, 4),))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_share_of_0_or_1_is_no_random_choice(share: float) -> None:
    compared(Checked(layer_drop(share)), (torch.randn(3, 4),))
