"""Operators that slide a window over rows and columns: convolutions and pools.

    x[n, c, i, j]  images: batch, channels, rows, columns
    k[o, c, a, b]  kernels: output channels, input channels, rows, columns

The output's sizes are attributes, ``height`` and ``width``, so that nothing is ever divided. Window
(h, w) begins at row ``stride_h*h - top`` and column ``stride_w*w - left`` of ``x``. Elements
outside of ``x`` are 0, or left out (``max_pool2d``, ``avg_pool2d_inside``). ``same``, ``valid`` and
``padded`` compute these attributes for the usual kinds of padding, and ``centred`` for ``enlarge``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pcg.lazy import torch
from pcg.ops.reindexing import cut_out
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from pcg.types.task import KernelTask


@dataclass(frozen=True)
class Windows:
    """Windows along one dimension: their number, and the padding before the first.

    They are the attributes ``height`` and ``top`` for rows, and ``width`` and ``left`` for columns.
    """

    count: int
    before: int


def same(size: int, kernel: int, stride: int = 1, dilation: int = 1) -> Windows:
    """Return the windows of TensorFlow's ``SAME`` padding: ceil(size / stride) windows, with the
    least padding that they need, the smaller half before."""
    count = -(-size // stride)
    padding = max(0, (count - 1) * stride + _extent(kernel, dilation) - size)
    return Windows(count, padding // 2)


def valid(size: int, kernel: int, stride: int = 1, dilation: int = 1) -> Windows:
    """Return the windows without padding (``VALID``), which lie wholly inside. Raises ValueError if
    there is none."""
    return padded(size, kernel, stride, dilation)


def padded(
    size: int, kernel: int, stride: int = 1, dilation: int = 1, *, before: int = 0, after: int = 0
) -> Windows:
    """Return the windows that lie wholly inside ``before + size + after``. Raises ValueError if
    there is none."""
    room = before + size + after - _extent(kernel, dilation)
    if room < 0:
        text = f"kernel {kernel} with dilation {dilation} exceeds size {before + size + after}"
        raise ValueError(text)
    return Windows(room // stride + 1, before)


def centred(kernel: int, enlarged: int) -> int:
    """Return how many zeros ``enlarge`` puts before a kernel to keep it in the middle.

    A convolution whose ``top`` (or ``left``) grows by this number gives the same result. Raises
    ValueError if there is no middle.
    """
    zeros = enlarged - kernel
    if zeros < 0 or zeros % 2:
        raise ValueError(f"kernel {kernel} has no place in the middle of {enlarged}")
    return zeros // 2


def _extent(kernel: int, dilation: int) -> int:
    """Return the number of elements from the first to the last that a window reads."""
    return dilation * (kernel - 1) + 1


_PLACES = ("height", "width")
_STRIDES = ("stride_h", "stride_w")
_DILATIONS = ("dilation_h", "dilation_w")
_KERNEL = ("kernel_h", "kernel_w")
_PADDING = ("top", "left")
_INDICES = ("h", "w")


class _Along(NamedTuple):
    """A task's windows along an axis of ``x``: ``windows`` windows, ``stride`` apart, with
    ``extent`` elements from first to last, the first window at ``start``. Positions count from the
    first element of the task's block. Elements outside the block are outside the tensor."""

    axis: int
    start: int
    windows: int
    stride: int
    extent: int


def _along(task: KernelTask, kernel: tuple[int, int]) -> Iterator[_Along]:
    attributes = task.attributes
    for axis, index, stride, dilation, padding, size in zip(
        (-2, -1), _INDICES, _STRIDES, _DILATIONS, _PADDING, kernel, strict=True
    ):
        start = attributes[stride] * task.start(index) - attributes[padding] - task.first(0, axis)
        extent = _extent(size, attributes.get(dilation, 1))
        yield _Along(axis, start, task.length(index), attributes[stride], extent)


def _read(task: KernelTask, x: Tensor, kernel: tuple[int, int], outside: float = 0.0) -> Tensor:
    """Return the rows and columns from the first to the last that some window reads."""
    for axis, start, windows, stride, extent in _along(task, kernel):
        x = cut_out(x, axis, start, (windows - 1) * stride + extent, outside)
    return x


def _even_padding(task: KernelTask, x: Tensor, kernel: tuple[int, int]) -> tuple[int, int] | None:
    """Return equal padding on both sides with which torch reads just the task's windows, or None if
    there is none. It saves a copy of the operand."""
    rows, columns = _along(task, kernel)
    for axis, start, windows, stride, extent in (rows, columns):
        room = x.shape[axis] - 2 * start - extent
        if start > 0 or room < 0 or room // stride + 1 != windows:
            return None
    return -rows.start, -columns.start


def _pair(task: KernelTask, names: tuple[str, str]) -> tuple[int, int]:
    return task.attributes[names[0]], task.attributes[names[1]]


def _convolve(task: KernelTask, x: Tensor, k: Tensor, groups: int) -> Tensor:
    kernel = (k.shape[2], k.shape[3])
    padding = _even_padding(task, x, kernel)
    return torch.nn.functional.conv2d(
        _read(task, x, kernel) if padding is None else x,
        k,
        stride=_pair(task, _STRIDES),
        padding=padding or 0,
        dilation=_pair(task, _DILATIONS),
        groups=groups,
    )


_CONVOLUTION = (*_PLACES, *_STRIDES, *_DILATIONS, *_PADDING)
_ROW = "stride_h*h + dilation_h*a - top"
_COLUMN = "stride_w*w + dilation_w*b - left"

conv2d = Operator(
    "conv2d",
    "x[n, c, i, j], k[o, c, a, b] -> out[n, o, h < height, w < width]"
    f" = sum c, a, b: x[n, c, {_ROW}, {_COLUMN}] * k[o, c, a, b]",
    sizes=_CONVOLUTION,
    kernel=lambda task, x, k: _convolve(task, x, k, 1),
)

grouped_conv2d = Operator(
    "grouped_conv2d",
    "x[n, (g c), i, j], k[(g o), c, a, b] -> out[n, (g o), h < height, w < width]"
    f" = sum c, a, b: x[n, (g c), {_ROW}, {_COLUMN}] * k[(g o), c, a, b]",
    sizes=_CONVOLUTION,
    kernel=lambda task, x, k: _convolve(task, x, k, task.length("g")),
)

depthwise_conv2d = Operator(
    "depthwise_conv2d",
    "x[n, c, i, j], k[(c m), u < 1, a, b] -> out[n, (c m), h < height, w < width]"
    f" = sum a, b: x[n, c, {_ROW}, {_COLUMN}] * k[(c m), 0, a, b]",
    sizes=_CONVOLUTION,
    kernel=lambda task, x, k: _convolve(task, x, k, task.length("c")),
)

_POOL = (*_PLACES, *_KERNEL, *_STRIDES, *_PADDING)
_POOLED_ROW = "stride_h*h + a - top"
_POOLED_COLUMN = "stride_w*w + b - left"
_POOLED = f"x[n, c, {_POOLED_ROW}, {_POOLED_COLUMN}]"
_INSIDE = f"0 <= {_POOLED_ROW} < |i| and 0 <= {_POOLED_COLUMN} < |j|"


def _average(task: KernelTask, x: Tensor) -> Tensor:
    kernel, strides = _pair(task, _KERNEL), _pair(task, _STRIDES)
    padding = _pool_padding(task, x)
    read = _read(task, x, kernel) if padding is None else x
    return torch.nn.functional.avg_pool2d(read, kernel, strides, padding or 0)


def _greatest(task: KernelTask, x: Tensor) -> Tensor:
    kernel, strides = _pair(task, _KERNEL), _pair(task, _STRIDES)
    padding = _pool_padding(task, x)
    read = _read(task, x, kernel, float("-inf")) if padding is None else x
    return torch.nn.functional.max_pool2d(read, kernel, strides, padding or 0)


def _pool_padding(task: KernelTask, x: Tensor) -> tuple[int, int] | None:
    """Return ``_even_padding`` if a pool of torch allows it: up to half of the kernel."""
    kernel = _pair(task, _KERNEL)
    even = _even_padding(task, x, kernel)
    if even is None or any(2 * pad > extent for pad, extent in zip(even, kernel, strict=True)):
        return None
    return even


def _average_inside(task: KernelTask, x: Tensor) -> Tensor:
    ones = torch.ones_like(x[:1, :1])
    return _average(task, x) / _average(task, ones)


max_pool2d = Operator(
    "max_pool2d",
    "x[n, c, i, j] -> out[n, c, h < height, w < width]"
    f" = max a < kernel_h, b < kernel_w where {_INSIDE}: {_POOLED}",
    sizes=_POOL,
    kernel=_greatest,
)

avg_pool2d = Operator(
    "avg_pool2d",
    "x[n, c, i, j] -> out[n, c, h < height, w < width]"
    f" = (sum a < kernel_h, b < kernel_w: {_POOLED}) / (kernel_h * kernel_w)",
    sizes=_POOL,
    kernel=_average,
)

avg_pool2d_inside = Operator(
    "avg_pool2d_inside",
    "x[n, c, i, j] -> out[n, c, h < height, w < width]"
    f" = (sum a < kernel_h, b < kernel_w: {_POOLED})"
    f" / (sum a < kernel_h, b < kernel_w: 1 if {_INSIDE} else 0)",
    sizes=_POOL,
    kernel=_average_inside,
)

enlarge = Operator(
    "enlarge",
    "k[o, c, a, b] -> out[o, c, h < kernel_h, w < kernel_w] = k[o, c, h - top, w - left]",
    sizes=(*_KERNEL, *_PADDING),
    kernel=lambda task, k: cut_out(
        cut_out(k, -2, -task.attributes["top"], task.attributes["kernel_h"]),
        -1,
        -task.attributes["left"],
        task.attributes["kernel_w"],
    ),
)

OPERATORS = (
    *(conv2d, grouped_conv2d, depthwise_conv2d),
    *(max_pool2d, avg_pool2d, avg_pool2d_inside, enlarge),
)
