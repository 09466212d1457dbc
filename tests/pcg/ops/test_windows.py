"""Convolutions and pools as in torch, for every way to pad, and identities among them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from support.cases import each
from support.graphs.differential import assert_means
from torch import Tensor
from torch.nn import functional

from pcg.ops import OPERATORS, windows
from pcg.ops.windows import Windows, centred, padded, same, valid
from runtime.execute.kernels import run_equation, run_whole, whole_task

DTYPES = (torch.float64, torch.float64, torch.float32, torch.bfloat16)


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    """Sizes of an image and a kernel, rows first, and the strides and dilations of the kernel."""

    image: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    @staticmethod
    def random(random: Random, *, dilated: bool = True) -> Case:
        def pair(low: int, high: int) -> tuple[int, int]:
            return random.randint(low, high), random.randint(low, high)

        dilation = pair(1, 2) if dilated else (1, 1)
        return Case(pair(5, 9), pair(1, 3), pair(1, 3), dilation)

    def attributes(self, rows: Windows, columns: Windows) -> dict[str, int]:
        placed = {"height": rows.count, "width": columns.count}
        placed |= {"top": rows.before, "left": columns.before}
        return placed | dict(zip(("stride_h", "stride_w"), self.stride, strict=True))

    def convolution(self, rows: Windows, columns: Windows) -> dict[str, int]:
        dilation = dict(zip(("dilation_h", "dilation_w"), self.dilation, strict=True))
        return self.attributes(rows, columns) | dilation

    def pool(self, rows: Windows, columns: Windows) -> dict[str, int]:
        kernel = dict(zip(("kernel_h", "kernel_w"), self.kernel, strict=True))
        return self.attributes(rows, columns) | kernel

    def along(self, way: Any, **padding: int) -> tuple[Windows, Windows]:
        rows, columns = zip(self.image, self.kernel, self.stride, self.dilation, strict=True)
        return way(*rows, **padding), way(*columns, **padding)


def groups_of(name: str, random: Random) -> tuple[int, int, int]:
    """Groups, and input and output channels of each."""
    if name == "conv2d":
        return 1, random.randint(1, 4), random.randint(1, 4)
    if name == "depthwise_conv2d":
        return random.randint(1, 4), 1, random.randint(1, 3)
    return random.randint(1, 3), random.randint(1, 3), random.randint(1, 3)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@each("seed", range(3))
@each("padding", ["explicit", "valid", "same"])
@each("name", ["conv2d", "grouped_conv2d", "depthwise_conv2d"])
def test_convolutions_are_those_of_torch(name: str, padding: str, seed: int):
    random = Random(f"{name} {padding} {seed}")
    case = Case.random(random)
    groups, channels, outputs = groups_of(name, random)
    x = numbers(seed, random.randint(1, 3), groups * channels, *case.image)
    k = numbers(seed + 1, groups * outputs, channels, *case.kernel)
    torchs: Any = {"explicit": random.randint(0, 3), "valid": "valid", "same": "same"}[padding]
    if padding == "same":  # torch has it for stride 1 only
        case = Case(case.image, case.kernel, (1, 1), case.dilation)
        placed = case.along(same)
    elif padding == "valid":
        placed = case.along(valid)
    else:
        placed = case.along(padded, before=torchs, after=torchs)
    call = OPERATORS[name](**case.convolution(*placed))
    # oneDNN's convolution in bfloat16, with groups and dilation, reads uninitialized memory on some
    # processors (torch 2.13: the same call gives different numbers, inf among them).
    with torch.backends.mkldnn.flags(enabled=False):
        assert_means(
            call,
            (x, k),
            lambda x, k: functional.conv2d(x, k, None, case.stride, torchs, case.dilation, groups),
            DTYPES[seed % len(DTYPES)],
        )


@each("seed", range(10))
@each("name", ["max_pool2d", "avg_pool2d", "avg_pool2d_inside"])
def test_pools_are_those_of_torch(name: str, seed: int):
    random = Random(f"{name} {seed}")
    case = Case.random(random, dilated=False)
    x = numbers(seed, random.randint(1, 3), random.randint(1, 3), *case.image)
    padding = random.randint(0, min(case.kernel) // 2)  # torch refuses more
    call = OPERATORS[name](**case.pool(*case.along(padded, before=padding, after=padding)))

    def theirs(x: Tensor) -> Tensor:
        if name == "max_pool2d":
            return functional.max_pool2d(x, case.kernel, case.stride, padding)
        counted = name == "avg_pool2d"
        return functional.avg_pool2d(
            x, case.kernel, case.stride, padding, count_include_pad=counted
        )

    assert_means(call, (x,), theirs, DTYPES[seed % len(DTYPES)])


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_pools_with_same_padding(stride: int):
    """Uneven padding, which torch's pools lack: by a pad of zeros, or of minus infinity."""
    x = numbers(stride, 2, 3, 7, 8)
    case = Case((7, 8), (4, 2), (stride, stride), (1, 1))
    rows, columns = case.along(same)
    after = [
        max(0, (w.count - 1) * stride + k - n - w.before)
        for w, k, n in zip((columns, rows), (2, 4), (8, 7), strict=True)
    ]
    sides = (columns.before, after[0], rows.before, after[1])
    attributes = case.pool(rows, columns)

    def around(x: Tensor, outside: float) -> Tensor:
        return functional.pad(x, sides, value=outside)

    assert_means(
        windows.max_pool2d(**attributes),
        (x,),
        lambda x: functional.max_pool2d(around(x, float("-inf")), (4, 2), stride),
    )
    assert_means(
        windows.avg_pool2d_inside(**attributes),
        (x,),
        lambda x: (
            functional.avg_pool2d(around(x, 0.0), (4, 2), stride)
            / functional.avg_pool2d(around(torch.ones_like(x), 0.0), (4, 2), stride)
        ),
    )


def test_a_pool_of_nothing():
    """Windows wholly outside: the maximum over no element is minus infinity, the mean is NaN."""
    x = numbers(0, 1, 1, 2, 2)
    far = {"height": 1, "width": 1, "kernel_h": 2, "kernel_w": 2, "stride_h": 1, "stride_w": 1}
    task, start = whole_task(windows.max_pool2d(**far, top=5, left=0), [(1, 1, 2, 2)]), [(0,) * 4]
    for operator, expected in (
        (windows.max_pool2d, float("-inf")),
        (windows.avg_pool2d, 0.0),
        (windows.avg_pool2d_inside, float("nan")),
    ):
        call = operator(**far, top=5, left=0)
        wanted = torch.full((1, 1, 1, 1), expected, dtype=torch.float64)
        for (ours,) in (run_whole(call, [x]), run_equation(call, task, [x], start)):
            torch.testing.assert_close(ours, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("sizes", "windows_same", "windows_valid"),
    [
        # size, kernel, stride, dilation: windows and padding before the first
        ((13, 6, 5, 1), (3, 1), 2),  # the example of TensorFlow's guide: 1 before, 2 after
        ((224, 7, 2, 1), (112, 2), 109),
        ((6, 3, 2, 1), (3, 0), 2),
        ((5, 3, 2, 1), (3, 1), 2),
        ((8, 3, 1, 2), (8, 2), 4),
        ((8, 1, 3, 1), (3, 0), 3),
        ((4, 2, 1, 1), (4, 0), 3),
    ],
)
def test_usual_padding(
    sizes: tuple[int, int, int, int], windows_same: tuple[int, int], windows_valid: int
):
    assert same(*sizes) == Windows(*windows_same)
    assert valid(*sizes) == Windows(windows_valid, 0)


def test_padding_that_leaves_no_window():
    assert padded(2, 5, before=2, after=1) == Windows(1, 2)
    with pytest.raises(ValueError, match="kernel 5 with dilation 1 exceeds size 4"):
        padded(2, 5, before=1, after=1)
    with pytest.raises(ValueError, match="kernel 3 with dilation 2 exceeds size 4"):
        valid(4, 3, dilation=2)


@pytest.mark.parametrize("kernel", [(1, 1), (1, 3), (3, 3)])
def test_an_enlarged_kernel_convolves_alike(kernel: tuple[int, int]):
    x, k = numbers(1, 2, 3, 7, 6), numbers(2, 4, 3, *kernel)
    top, left = (centred(size, 5) for size in kernel)
    enlarged = windows.enlarge(kernel_h=5, kernel_w=5, top=top, left=left)
    (large,) = run_whole(enlarged, [k])
    assert large.shape == (4, 3, 5, 5)
    plain = dict.fromkeys(("stride_h", "stride_w", "dilation_h", "dilation_w"), 1)
    plain |= {"height": 7, "width": 6}
    (before,) = run_whole(windows.conv2d(**plain, top=1, left=0), [x, k])
    (after,) = run_whole(windows.conv2d(**plain, top=1 + top, left=left), [x, large])
    torch.testing.assert_close(before, after)


def test_a_kernel_that_has_no_middle():
    with pytest.raises(ValueError, match="kernel 2 has no place in the middle of 5"):
        centred(2, 5)
    with pytest.raises(ValueError, match="kernel 5 has no place in the middle of 3"):
        centred(5, 3)


@pytest.mark.parametrize("top", [0, 1, 4])
def test_enlarge_may_cut_off(top: int):
    """A kernel that begins too late loses its end. Nothing else is read there."""
    k = numbers(3, 2, 2, 3, 3)
    call = windows.enlarge(kernel_h=4, kernel_w=3, top=top, left=0)
    assert_means(call, (k,), lambda k: functional.pad(k, (0, 0, top, 1))[:, :, :4])


def test_kernels_that_are_constants():
    x = numbers(4, 2, 3, 6, 7)
    plain = dict.fromkeys(("stride_h", "stride_w", "dilation_h", "dilation_w"), 1)
    identity = OPERATORS["identity_kernel"](channels=3, kernel_h=3, kernel_w=5, top=1, left=2)
    (kernel,) = run_whole(identity, [])
    call = windows.conv2d(**plain, height=6, width=7, top=1, left=2)
    torch.testing.assert_close(run_whole(call, [x, kernel.double()])[0], x)
    average = OPERATORS["averaging_kernel"](channels=3, kernel_h=2, kernel_w=4)
    (kernel,) = run_whole(average, [])
    placed = {"height": 6, "width": 7, "top": 1, "left": 2}
    (ours,) = run_whole(windows.depthwise_conv2d(**plain, **placed), [x, kernel.double()])
    pool = windows.avg_pool2d(kernel_h=2, kernel_w=4, stride_h=1, stride_w=1, **placed)
    torch.testing.assert_close(ours, run_whole(pool, [x])[0], rtol=1e-6, atol=1e-6)
