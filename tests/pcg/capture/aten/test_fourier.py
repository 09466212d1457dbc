"""Fourier transforms and functions of complex numbers: values and gradients equal torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from support.graphs.torch_functions import default_dtype
from torch import Tensor, fft, nn
from torch.export import ExportedProgram

from pcg.capture import capture
from pcg.capture.aten.fourier import ENTRIES, MOST
from pcg.capture.export import export
from pcg.errors import InputError
from runtime.train.eager import compare_module

SHAPE = (4, 6, 7)
NEAR = 1e-11

CASES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "there and back in two dimensions": lambda x: fft.irfft2(
        fft.rfft2(x, norm="ortho") * 2, s=SHAPE[1:], norm="ortho"
    ),
    "of all places, as FNet mixes them": lambda x: fft.fftn(x, dim=(1, 2)).real,
    "one axis after the other": lambda x: fft.fft(fft.fft(x, dim=-1), dim=-2).real,
    "the first axes": lambda x: fft.fft2(x, dim=(0, 1), norm="forward").imag,
    "inverse": lambda x: fft.fftshift(fft.ifft(x)).abs(),
    "inverse of all": lambda x: fft.ifftn(x).real,
    "longer": lambda x: fft.rfft(x, n=10).imag,
    "shorter": lambda x: fft.rfft(x, n=5).imag,
    "the middle frequency is real": lambda x: fft.rfft(x, dim=1).angle().cos(),
    "back to an odd length": lambda x: fft.irfft(fft.rfft(x), n=7),
    "back to an even length": lambda x: fft.irfft(fft.rfft(x, dim=1), n=6, dim=1),
    "back to more": lambda x: fft.irfft(fft.rfft(x), n=12),
    "of conjugates": fft.hfft,
    "to conjugates": lambda x: fft.ihfft(x).imag,
    "a convolution": lambda x: fft.irfft(fft.rfft(x, n=14) * fft.rfft(x[:1], n=14).conj(), n=14),
    "a gate": lambda x: fft.ifft(fft.fft(x) * torch.sigmoid(fft.fft(x).abs())).real,
    "windows": lambda x: torch.stft(
        x.reshape(4, -1), 16, window=torch.ones(16, dtype=x.dtype), return_complex=True
    ).abs(),
    "product of matrices": lambda x: (fft.fft(x).mT @ fft.fft(x)).abs(),
    "quotient": lambda x: (fft.fft(x) / (2 + fft.ifft(x))).real,
    "quotient by real numbers": lambda x: (fft.fft(x) / (2 + x.abs())).real,
    "inverse numbers": lambda x: (1 / (3j - fft.fft(x))).real,
    "exponential": lambda x: torch.exp(1j * x).real,
    "sum and a number": lambda x: (fft.fft(x).sum(1) - 3j).abs(),
    "mean": lambda x: (-fft.fft(x)).mean((0, 1)).imag,
    "of nothing": lambda x: fft.fft(x * 0).abs() + x,
    "padded with zeros": lambda x: torch.nn.functional.pad(fft.fft(x), (1, 2)).imag,
    "side by side": lambda x: torch.stack([fft.fft(x), fft.ifft(x)]).imag,
    "real and complex": lambda x: (x + fft.fft(x)).abs(),
    "pairs": lambda x: torch.view_as_real(fft.fft(x)).flatten(-2),
}


class Every(nn.Module):
    """All cases at once, because an export takes long to begin. The loss weighs their elements."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SHAPE, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        results = [function(self.weight * x) for function in CASES.values()]
        sums = [(made.flatten() * torch.arange(made.numel()).sin()).sum() for made in results]
        return (torch.stack(sums).sum(), *sums, *results)


def test_values_and_gradients_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry is tried."""
    programs: list[ExportedProgram] = []

    def recorded(*given: Any) -> tuple[ExportedProgram, tuple[str, ...]]:
        program, checks = export(*given)
        programs.append(program)
        return program, checks

    monkeypatch.setattr("pcg.capture.convert.export", recorded)
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        example = (torch.randn(SHAPE, dtype=torch.float64),)
        captured = capture(module := Every(), example)
        comparison = compare_module(module, example, captured, "model")
    assert ENTRIES.keys() <= {str(node.target) for p in programs for node in p.graph.nodes}
    assert captured.opaque == ()
    assert comparison.error is not None, comparison.reason
    assert comparison.error < NEAR


@pytest.mark.parametrize("name", CASES)
def test_each_function_has_gradients(name: str) -> None:
    """Otherwise there would be nothing to compare."""
    x = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    CASES[name](x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.any()


def test_too_long_an_axis_is_one_line() -> None:
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return fft.rfft(self.weight * x).abs().sum()

    with pytest.raises(InputError, match=r"line \d+: aten\._fft_r2c\.default of complex") as raised:
        capture(Long(), (torch.zeros(2, MOST + 1),))
    assert "\n" not in str(raised.value)
