"""Constants of a program: their descriptions give the same numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import examples
from support.graphs.torch_functions import default_dtype
from torch import Tensor, nn

from pcg.capture import capture, constants
from pcg.errors import InputError
from runtime.train.check import evaluate
from runtime.train.eager import compare_module

SIZES = st.integers(1, 6)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Numbers, progressions, bands of a matrix, and lists, repeated along further dimensions."""
    low, high = draw(st.integers(-3, 3)), draw(st.integers(-3, 3))
    rows, columns = draw(SIZES), draw(SIZES)
    kind = draw(st.sampled_from(["number", "progression", "band", "outside", "list"]))
    if kind == "number":
        core = torch.tensor(float(low))
    elif kind == "progression":
        core = low + high * torch.arange(rows, dtype=torch.float64)
    elif kind == "list":
        core = torch.tensor(draw(st.lists(st.integers(-9, 9), min_size=1, max_size=6)))
    else:
        first, last = sorted((draw(st.integers(-6, 6)), draw(st.integers(-6, 6))))
        diagonal = torch.arange(columns) - torch.arange(rows).unsqueeze(1)
        inside = (diagonal >= first) & (diagonal <= last)
        core = torch.where(inside if kind == "band" else ~inside, low, high)
    for _ in range(draw(st.integers(0, 2))):
        axis = draw(st.integers(0, core.dim()))
        core = core.unsqueeze(axis).repeat_interleave(draw(SIZES), axis)
    return core.double()


class Times(nn.Module):
    def __init__(self, constants: list[Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.constants = [one.tolist() for one in constants]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made = (torch.tensor(one, dtype=torch.float64) for one in self.constants)
        return (self.weight * x, *(one * self.weight for one in made))


@examples(2)
@given(st.lists(tensors(), min_size=6, max_size=12))
def test_operators_give_the_same_numbers(constants: list[Tensor]) -> None:
    module = Times(constants)
    with default_dtype(torch.float64):
        made = capture(module, (torch.ones((), dtype=torch.float64),))
    assert made.opaque == ()
    assert made.buffers == {}
    leaves = {w.leaf: module.weight for w in made.weights}
    leaves |= {name: torch.ones((), dtype=torch.float64) for name in made.inputs if name}
    with default_dtype(torch.float64):
        _, *results = evaluate(made.graph, leaves)
    for one, expected in zip(results, constants, strict=True):
        torch.testing.assert_close(one, expected, rtol=0, atol=0)


class TooLarge(nn.Module):
    """A mask as CLIP makes it. In double precision torch refuses its float32 default."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((3, 3), torch.finfo(x.dtype).min)
        return (self.weight * x + mask).sum()


def test_constant_that_overflows_is_refused_by_its_line() -> None:
    assert not capture(TooLarge(), (torch.ones(3, 3),)).opaque
    with pytest.raises(InputError, match=r"test_constants\.py: line \d+: aten\.full.*overflow"):
        capture(TooLarge().double(), (torch.ones(3, 3).double(),))


class Views(nn.Module):
    """Several views of one constant, and a cache that begins empty."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        band = torch.ones(5, 5, dtype=torch.float64).tril()
        views = (band, band.view(5, 5), band.T, band[:3], band[:, 2:], band[1:4, 1:4], band.flip(0))
        cached = torch.cat([torch.tensor([], dtype=x.dtype), x.expand(2, 3)], dim=-2)
        return (self.weight * x, self.weight * cached, *(view * self.weight for view in views))


def test_views_of_one_constant_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    value = constants._value
    monkeypatch.setattr(constants, "_value", lambda t: (seen.append(t), value(t))[1])
    module, x = Views(), torch.ones((), dtype=torch.float64)
    made = capture(module, (x,))
    assert made.opaque == ()
    leaves = {w.leaf: module.weight for w in made.weights}
    leaves |= {name: x for name in made.inputs if name}
    expected = module(x)
    with default_dtype(torch.float64):
        actual = evaluate(made.graph, leaves)
    torch.testing.assert_close(tuple(actual), expected, rtol=0, atol=0)
    # The second view equals the first, so it is not described again.
    assert len([t for t in seen if t.dim()]) == len(expected) - 3


class Shifted(nn.Module):
    """Windows that attend to their own region alone, numbered and masked as in Swin: in pieces,
    none of which reads an input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(9, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        regions = x.new_zeros(12, 12)
        for number, (rows, columns) in enumerate(
            (a, b) for a in ((0, -4), (-4, -2), (-2, None)) for b in ((0, -4), (-4, -2), (-2, None))
        ):
            regions[slice(*rows), slice(*columns)] = number
        windows = regions.view(3, 4, 3, 4).permute(0, 2, 1, 3).reshape(9, 16)
        apart = windows.unsqueeze(1) - windows.unsqueeze(2)
        mask = apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)
        return ((self.weight * x + mask).softmax(-1) * x).sum()


def test_constants_without_a_description_are_computed() -> None:
    torch.manual_seed(0)
    example = (torch.randn(9, 16, 16),)
    captured = capture(module := Shifted(), example)
    assert captured.buffers == {}
    comparison = compare_module(module, example, captured, "model")
    assert comparison.error is not None, comparison.reason
    assert comparison.error < 1e-12


class SeesBefore(nn.Module):
    """Attention under a causal mask that is expanded to all samples, as in ``transformers``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[2])
        mask = (places <= places.unsqueeze(1))[None, None].expand(len(x), 1, -1, -1)
        return nn.functional.scaled_dot_product_attention(x * self.weight, x, x, mask).sum()


def test_mask_of_a_large_batch_is_computed_for_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MOST_BYTES", 16 * 64 - 1)  # a mask of all 16 samples has more
    graph = capture(SeesBefore(), (torch.ones(16, 2, 8, 4),)).graph
    names = {node.name for node in graph.operators}
    assert "causal_attention" in names
    assert "masked_attention" not in names
