"""The torch function of each operator, by name. Its arguments are the operator's attributes and
operands."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Attributes = Mapping[str, Any]
INSIDE_ONLY = float("-inf")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Generator[None]:
    """The number format in which constants are made within the ``with`` block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def padded_around(a: Attributes, x: Tensor, outside: float = 0.0) -> Tensor:
    """A tensor with more rows around it than any window reads. It begins where the first window
    begins."""
    after = 40
    return functional.pad(x, (a["left"], after, a["top"], after), value=outside)


def first_windows(a: Attributes, result: Tensor) -> Tensor:
    """The first ``count`` windows."""
    return result[:, :, : a["height"], : a["width"]]


def strides(a: Attributes) -> tuple[int, int]:
    return a["stride_h"], a["stride_w"]


def convolution(a: Attributes, x: Tensor, k: Tensor, groups: int = 1) -> Tensor:
    dilation = (a["dilation_h"], a["dilation_w"])
    result = functional.conv2d(padded_around(a, x), k, None, strides(a), 0, dilation, groups)
    return first_windows(a, result)


def max_pool(a: Attributes, x: Tensor) -> Tensor:
    kernel = (a["kernel_h"], a["kernel_w"])
    return first_windows(
        a, functional.max_pool2d(padded_around(a, x, INSIDE_ONLY), kernel, strides(a))
    )


def average(a: Attributes, x: Tensor) -> Tensor:
    kernel = (a["kernel_h"], a["kernel_w"])
    return first_windows(a, functional.avg_pool2d(padded_around(a, x), kernel, strides(a)))


def sliced_linear(x: Tensor, w: Tensor, shares: int) -> Tensor:
    """A linear layer, computed shard by shard as on devices."""
    return torch.stack(
        [
            torch.cat(
                [
                    torch.cat([rows @ part.T for rows, part in zip(along, of, strict=True)], 1)
                    for along, of in zip(
                        zip(*(piece.chunk(len(w), 0) for piece in x_share), strict=True),
                        (piece.chunk(len(x), 0) for piece in w_share),
                        strict=True,
                    )
                ]
            )
            for x_share, w_share in zip(x.chunk(shares, 2), w.chunk(shares, 2), strict=True)
        ]
    )


def enlarged(a: Attributes, k: Tensor) -> Tensor:
    return padded_around(a, k)[:, :, : a["kernel_h"], : a["kernel_w"]]


def batch_norm(a: Attributes, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if x.numel() == x.shape[1]:  # torch refuses a batch of one; a single value minus its mean is 0
        return 0 * x * weight.reshape(-1, *[1] * (x.dim() - 2)) + bias.reshape(
            -1, *[1] * (x.dim() - 2)
        )
    return functional.batch_norm(x, None, None, weight, bias, True, eps=a["eps"])


def ghost_batch_norm(a: Attributes, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    parts = torch.tensor_split(x, a["groups"])
    return torch.cat([batch_norm(a, part, weight, bias) for part in parts])


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask
    return torch.softmax(score, -1) @ v


def cut(a: Attributes, x: Tensor, before: int, start: int) -> Tensor:
    """A part of an axis, by way of a copy with zeros on both sides."""
    last = x.movedim(a["axis"], -1)
    padded = functional.pad(last, (before, start + a["size"]))
    return padded[..., start : start + a["size"]].movedim(-1, a["axis"])


def expand(a: Attributes, x: Tensor) -> Tensor:
    return torch.repeat_interleave(x.unsqueeze(a["axis"]), a["size"], a["axis"])


def identity_kernel(a: Attributes) -> Tensor:
    kernel = torch.zeros(a["channels"], a["channels"], a["kernel_h"], a["kernel_w"])
    if a["top"] < a["kernel_h"] and a["left"] < a["kernel_w"]:
        kernel[:, :, a["top"], a["left"]] = torch.eye(a["channels"])
    return kernel


def averaging_kernel(a: Attributes) -> Tensor:
    area = a["kernel_h"] * a["kernel_w"]
    return torch.full((a["channels"], 1, a["kernel_h"], a["kernel_w"]), 1 / area)


def places(a: Attributes, like: Tensor, x: Tensor) -> Tensor:
    """Zeros for sums along an axis, as many as ``like`` has."""
    axis = a["axis"]
    return x.new_zeros((*x.shape[:axis], len(like), *x.shape[axis + 1 :]))


TORCH: dict[str, Callable[..., Any]] = {
    "matmul": lambda a, x, w: torch.matmul(x, w),
    "batch_matmul": lambda a, x, y: torch.matmul(x, y),
    "matmul_relu": lambda a, x, w: torch.relu(torch.matmul(x, w)),
    "add": lambda a, x, y: x + y,
    "multiply": lambda a, x, y: x * y,
    "scale": lambda a, x: x * a["factor"],
    "relu": lambda a, x: torch.relu(x),
    "gelu": lambda a, x: functional.gelu(x),
    # element-wise
    "subtract": lambda a, x, y: torch.subtract(x, y),
    "divide": lambda a, x, y: torch.divide(x, y),
    "negate": lambda a, x: torch.neg(x),
    "reciprocal": lambda a, x: torch.reciprocal(x),
    "maximum": lambda a, x, y: torch.maximum(x, y),
    "minimum": lambda a, x, y: torch.minimum(x, y),
    "clamp": lambda a, x: torch.clamp(x, a["low"], a["high"]),
    "shift": lambda a, x: x + a["offset"],
    "divide_by_size": lambda a, x: x / a["size"],
    "divide_by_root": lambda a, x: x / a["size"] ** 0.5,
    "exp": lambda a, x: torch.exp(x),
    "log": lambda a, x: torch.log(x),
    "sqrt": lambda a, x: torch.sqrt(x),
    "rsqrt": lambda a, x: torch.rsqrt(x),
    "power": lambda a, x: torch.pow(x, a["exponent"]),
    "sigmoid": lambda a, x: torch.sigmoid(x),
    "tanh": lambda a, x: torch.tanh(x),
    "silu": lambda a, x: functional.silu(x),
    "where": lambda a, condition, x, y: torch.where(condition.bool(), x, y),
    "dropout": lambda a, x, mask: a["scale"] * mask * x,
    "to_float16": lambda a, x: x.to(torch.float16),
    "to_bfloat16": lambda a, x: x.to(torch.bfloat16),
    "to_float32": lambda a, x: x.to(torch.float32),
    # layout
    "concat": lambda a, x, y: torch.cat((x, y), a["axis"]),
    "split": lambda a, x: torch.split(x, [a["at"], x.shape[a["axis"]] - a["at"]], a["axis"]),
    "transpose": lambda a, x: torch.transpose(x, a["dim0"], a["dim1"]),
    "flatten": lambda a, x: torch.flatten(x, a["axis"], a["axis"] + 1),
    "unflatten": lambda a, x: torch.unflatten(x, a["axis"], (a["outer"], a["inner"])),
    "slice": lambda a, x: cut(a, x, 0, a["start"]),
    "pad": lambda a, x: cut(a, x, a["before"], 0),
    "stack": lambda a, x, y: torch.stack((x, y), a["axis"]),
    "expand_as": lambda a, like, x: x.unsqueeze(a["axis"]) + torch.zeros_like(like),
    "expand_vector": lambda a, like, x: (torch.zeros_like(like).movedim(a["axis"], -1) + x).movedim(
        -1, a["axis"]
    ),
    "expand": expand,
    # norms, softmax, losses
    "softmax": lambda a, x: torch.softmax(x, a["axis"]),
    "log_softmax": lambda a, x: torch.log_softmax(x, a["axis"]),
    "layer_norm": lambda a, x, w, b: functional.layer_norm(x, (x.shape[-1],), w, b, a["eps"]),
    "rms_norm": lambda a, x, w: functional.rms_norm(x, (x.shape[-1],), w, a["eps"]),
    "batch_norm": batch_norm,
    "ghost_batch_norm": ghost_batch_norm,
    "repeat_each": lambda a, x: torch.repeat_interleave(x, a["times"], a["axis"]),
    "sum_groups": lambda a, x: x.unflatten(a["axis"], (-1, a["times"])).sum(a["axis"] + 1),
    "sliced_linear": lambda a, x, w: sliced_linear(x, w, a["shares"]),
    "times_scalar": lambda a, x, s: x * s,
    "sum_axis": lambda a, x: torch.sum(x, a["axis"]),
    "mean_axis": lambda a, x: torch.mean(x, a["axis"]),
    "max_axis": lambda a, x: torch.max(x, a["axis"]).values,
    "logsumexp": lambda a, x: torch.logsumexp(x, a["axis"]),
    "nll": lambda a, logits, target, total: functional.nll_loss(
        logits - total.unsqueeze(1), target.long(), reduction="none"
    ),
    "sum_loss": lambda a, x: x.sum(),
    "mean_loss": lambda a, x: x.mean(),
    "cross_entropy": lambda a, logits, target: functional.cross_entropy(logits, target.long()),
    # attention
    "attention": lambda a, q, k, v: functional.scaled_dot_product_attention(q, k, v),
    "causal_attention": lambda a, q, k, v: functional.scaled_dot_product_attention(
        q, k, v, is_causal=True
    ),
    "masked_attention": lambda a, q, k, v, mask: masked(q, k, v, mask),
    # look-ups
    "embedding": lambda a, ids, table: functional.embedding(ids.long(), table),
    "embedding_bag": lambda a, ids, table: functional.embedding(ids.long(), table).sum(-2),
    "gather": lambda a, x, ids: torch.gather(x, -1, ids.long()),
    "index_add": lambda a, like, ids, x: places(a, like, x).index_add(a["axis"], ids.long(), x),
    "scatter_add": lambda a, like, ids, x: places(a, like, x).scatter_add(a["axis"], ids.long(), x),
    "one_hot": lambda a, ids: functional.one_hot(ids.long(), a["classes"]).to(ids.dtype),
    "cumulative_sum": lambda a, x: torch.cumsum(x, -1),
    "moe_dispatch": lambda a, x, mask: (mask.flatten(1).T @ x).unflatten(0, mask.shape[1:]),
    "moe_combine": lambda a, y, mask: mask.flatten(1) @ y.flatten(0, 1),
    # windows
    "conv2d": convolution,
    "grouped_conv2d": lambda a, x, k: convolution(a, x, k, x.shape[1] // k.shape[1]),
    "depthwise_conv2d": lambda a, x, k: convolution(a, x, k, x.shape[1]),
    "max_pool2d": max_pool,
    "avg_pool2d": average,
    "avg_pool2d_inside": lambda a, x: average(a, x) / average(a, torch.ones_like(x)),
    "enlarge": enlarged,
    # constants
    "ones1": lambda a: torch.ones(a["size0"]),
    "ones2": lambda a: torch.ones(a["size0"], a["size1"]),
    "ones3": lambda a: torch.ones(a["size0"], a["size1"], a["size2"]),
    "ones4": lambda a: torch.ones(a["size0"], a["size1"], a["size2"], a["size3"]),
    "lower_triangle": lambda a: torch.tril(torch.ones(a["rows"], a["columns"])),
    "identity_matrix": lambda a: torch.eye(a["size"]),
    "position_ids": lambda a: torch.arange(a["size"]).to(torch.get_default_dtype()),
    "identity_kernel": identity_kernel,
    "averaging_kernel": averaging_kernel,
}
