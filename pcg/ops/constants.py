"""Operators without operands, for tensors that do not depend on any input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from pcg.types.task import KernelTask

ones1 = Operator("ones1", "out[i < size0] = 1", sizes=("size0",))

ones2 = Operator("ones2", "out[i < size0, j < size1] = 1", sizes=("size0", "size1"))

ones3 = Operator(
    "ones3", "out[i < size0, j < size1, k < size2] = 1", sizes=("size0", "size1", "size2")
)

ones4 = Operator(
    "ones4",
    "out[i < size0, j < size1, k < size2, l < size3] = 1",
    sizes=("size0", "size1", "size2", "size3"),
)


def _eye(task: KernelTask) -> Tensor:
    return torch.eye(task.attributes["size"])


identity_matrix = Operator(
    "identity_matrix",
    "out[i < size, j < size] = 1 if i == j else 0",
    sizes=("size",),
    kernel=_eye,
)


def _lower_triangle(task: KernelTask) -> Tensor:
    return torch.ones(task.attributes["rows"], task.attributes["columns"]).tril()


# Row i has ones up to column i: the keys that a query sees under causal attention.
lower_triangle = Operator(
    "lower_triangle",
    "out[i < rows, j < columns] = 1 if j <= i else 0",
    sizes=("rows", "columns"),
    kernel=_lower_triangle,
)


def _count(task: KernelTask) -> Tensor:
    return torch.arange(task.attributes["size"], dtype=torch.get_default_dtype())


position_ids = Operator(
    "position_ids",
    "out[i < size] = i",
    sizes=("size",),
    kernel=_count,
)

# A convolution with this kernel returns its input, if its padding is (top, left) as well.
identity_kernel = Operator(
    "identity_kernel",
    "out[o < channels, c < channels, a < kernel_h, b < kernel_w]"
    " = 1 if o == c and a == top and b == left else 0",
    sizes=("channels", "kernel_h", "kernel_w", "top", "left"),
)

# A depthwise convolution with this kernel is an average pool.
averaging_kernel = Operator(
    "averaging_kernel",
    "out[c < channels, u < 1, a < kernel_h, b < kernel_w] = 1 / (kernel_h * kernel_w)",
    sizes=("channels", "kernel_h", "kernel_w"),
)

OPERATORS = (
    *(ones1, ones2, ones3, ones4, identity_matrix, lower_triangle, position_ids),
    *(identity_kernel, averaging_kernel),
)
