"""Modules that ask whether they are compiled. They are captured as they run eagerly if torch cannot
make the program of the other branch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.public.compared import compared
from torch import Tensor, nn

from pcg.capture import capture
from pcg.errors import InputError


class Masked(nn.Module):
    """Makes a mask that fits if it runs eagerly, and the mask of ``otherwise`` if it is
    compiled."""

    def __init__(self, asks: str, otherwise: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.asks, self.otherwise = asks, otherwise

    def forward(self, x: Tensor) -> Tensor:
        scores = self.head(x)
        compiled = getattr(torch.compiler, self.asks)()
        return (scores + (self.otherwise(scores) if compiled else torch.ones(4))).square().mean()


@pytest.mark.parametrize("asks", ["is_compiling", "is_exporting"])
def test_branch_that_runs_is_captured_if_the_one_for_compilers_cannot_be(asks: str) -> None:
    captured, _ = compared(Masked(asks, lambda scores: torch.ones(5)), (torch.randn(3, 4),))
    assert captured.opaque == ()


def test_branch_for_compilers_is_captured_if_it_has_the_same_values() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if not torch.compiler.is_compiling() and (x > 1e9).any():
                x = x.clamp(max=1e9)
            return self.head(x).square().mean()

    compared(Chooses(), (torch.randn(3, 4),))


def is_compiled() -> bool:
    """A separate function asks, as in transformers."""
    return torch.compiler.is_compiling()


def test_check_skipped_for_compilers_is_skipped_with_another_branch_kept() -> None:
    class Checks(Masked):
        def checked(self, x: Tensor) -> Tensor:
            if is_compiled():
                return x
            return x.clamp(max=1e9) if (x > 1e9).any() else x

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.checked(x))

    compared(Checks("is_compiling", lambda scores: torch.ones(5)), (torch.randn(3, 4),))


def test_branch_for_compilers_with_other_values_is_refused() -> None:
    module = Masked("is_compiling", lambda scores: torch.zeros(4))
    with pytest.raises(InputError, match="differ"):
        compared(module, (torch.randn(3, 4),))


def test_first_error_is_reported_if_neither_branch_can_be_captured() -> None:
    class Neither(Masked):
        def forward(self, x: Tensor) -> Tensor:
            if torch.compiler.is_compiling():
                return super().forward(x + torch.ones(7))
            return super().forward(x) if x.sum() > 0 else super().forward(-x)

    module = Neither("is_compiling", lambda scores: scores)
    with pytest.raises(InputError, match=r"test_compiling.py: line \d+: .*broadcast"):
        capture(module, (torch.randn(3, 4),))


def test_a_module_that_does_not_ask_is_exported_once() -> None:
    times = 0

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal times
            times += 1
            return x + torch.ones(7)

    with pytest.raises(InputError):
        capture(Counting(), (torch.randn(3, 4),))
    assert times == 1
