"""Linear algebra and element-wise operators."""

from __future__ import annotations

from pcg.lazy import torch
from pcg.operator import Operator

matmul = Operator(
    "matmul",
    "out[a..., n] = sum k: x[a..., k] * w[k, n]",
    kernel=lambda task, x, w: torch.matmul(x, w),
)

batch_matmul = Operator(
    "batch_matmul",
    "out[b..., m, n] = sum k: x[b..., m, k] * y[b..., k, n]",
    kernel=lambda task, x, y: torch.matmul(x, y),
)

add = Operator("add", "out[i...] = x[i...] + y[i...]", commutative=True)

multiply = Operator("multiply", "out[i...] = x[i...] * y[i...]", commutative=True)

scale = Operator("scale", "out[i...] = factor * x[i...]", reals=("factor",))

relu = Operator("relu", "out[i...] = relu(x[i...])")

gelu = Operator("gelu", "out[i...] = gelu(x[i...])")

OPERATORS = (matmul, batch_matmul, add, multiply, scale, relu, gelu)
