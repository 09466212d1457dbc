"""Linear algebra and element-wise operators."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pcg.lazy import torch
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pcg.types.task import KernelTask

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


@lru_cache(maxsize=1)
def with_epilogue() -> Callable[[Tensor, Tensor], Tensor]:
    """Return ``relu(x w)`` as a function of ``x[..., k]`` and ``w[k, n]``. On a GPU it is one
    kernel, whose derivative torch does not know. (The class is made here because it needs torch.)
    """

    class MatmulRelu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            rows = x.reshape(-1, x.shape[-1])
            # Torch fuses the product with the ReLU only if there is a bias.
            bias = w.new_zeros(w.shape[1])
            out = torch.ops.aten._addmm_activation(bias, rows, w)
            ctx.save_for_backward(rows, w, out)
            ctx.shape = x.shape
            return out.view(*x.shape[:-1], w.shape[1])

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
            rows, w, out = ctx.saved_tensors
            slope = torch.ops.aten.threshold_backward(gradient.reshape(out.shape), out, 0)
            of_x, of_w = ctx.needs_input_grad
            return (
                (slope @ w.t()).view(ctx.shape) if of_x else None,
                rows.t() @ slope if of_w else None,
            )

    return MatmulRelu.apply


def _matmul_relu(task: KernelTask, x: Tensor, w: Tensor) -> Tensor:
    # Autocast chooses the number format of a product, but not that of the fused kernel.
    if x.is_cuda and not torch.is_autocast_enabled("cuda"):
        return with_epilogue()(x, w)
    return torch.relu_(torch.matmul(x, w))


# A matrix product followed by a ReLU, without another pass over the result.
matmul_relu = Operator(
    "matmul_relu", "out[a..., n] = relu(sum k: x[a..., k] * w[k, n])", kernel=_matmul_relu
)

OPERATORS = (matmul, batch_matmul, add, multiply, scale, relu, gelu, matmul_relu)
