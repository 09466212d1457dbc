"""Modules without a forward to follow, and other lost gradients, are refused in a line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.cases import a_third
from torch import Tensor, nn

from pcg.capture import capture
from pcg.errors import InputError

HERE = r"^\S*test_refusals\.py: line \d+: "


class Summed(nn.Module):
    """The sum of the results of a part."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x).sum()


class Differentiated(nn.Linear):
    """A derivative by the input, within forward."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.func.grad(lambda x: super(Differentiated, self).forward(x).sum())(input)


class Multiplied(nn.Linear):
    """A product of nothing, which is one."""

    def forward(self, input: Tensor) -> Tensor:
        rows = super().forward(input)
        return rows * rows[:0].prod()


class Normed(nn.CrossMapLRN2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input[None, :, :, None])


def scripted() -> nn.Module:
    return torch.jit.script(nn.Linear(3, 1))


def hooked() -> nn.Module:
    layer = nn.Linear(3, 1)
    layer.weight.register_hook(lambda gradient: gradient / 2)
    return layer


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "lazy": (
        lambda: nn.LazyLinear(1),
        r"^model: part \(LazyLinear\) has parameters without a shape",
    ),
    "scripted": (scripted, r"^model: part \(RecursiveScriptModule\) is TorchScript, expected"),
    "hooked": (hooked, HERE + "a hook of parameter part.weight is lost"),
    "differentiated": (
        lambda: Differentiated(3, 1),
        HERE + "torch.func.grad takes gradients within",
    ),
    "normed": (lambda: Normed(3), HERE + "CrossMapLRN2d has a backward that is not the derivative"),
    "empty": (
        lambda: Multiplied(3, 1),
        HERE + r"aten\.slice\.Tensor reads or makes a tensor without",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", a_third(REFUSED))
def test_the_line_or_the_part_is_named(name: str) -> None:
    make, problem = REFUSED[name]
    with pytest.raises(InputError, match=problem) as raised:
        capture(Summed(make()), (torch.zeros(2, 3),))
    assert "\n" not in str(raised.value)


def smallest(rows: Tensor) -> Tensor:
    return rows[rows > 0].sort().values[0]


class Helped(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return smallest(super().forward(input))


def test_a_helper_and_the_line_that_calls_it_are_named() -> None:
    first, then = smallest.__code__.co_firstlineno, Helped.forward.__code__.co_firstlineno
    lines = (
        rf"test_refusals\.py: line {first + 1}, called at \S*test_refusals\.py: line {then + 1}: "
    )
    with pytest.raises(InputError, match=lines) as raised:
        capture(Helped(4, 4), (torch.randn(3, 4),))
    assert "aten.sort" in str(raised.value)
