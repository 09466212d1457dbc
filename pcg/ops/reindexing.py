"""Operators that only move elements: along an axis, between axes, or into a new axis.

``slice`` and ``pad`` read 0 beyond the ends of their operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcg.graph.graph import Value, apply
from pcg.lazy import torch
from pcg.types.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from pcg.types.task import KernelTask


def cut_out(x: Tensor, axis: int, start: int, size: int, outside: float = 0.0) -> Tensor:
    """Return elements ``start`` to ``start + size`` of an axis, some of which may lie outside."""
    have = x.shape[axis]
    first, last = min(max(start, 0), have), min(max(start + size, 0), have)
    part = x.narrow(axis, first, max(last - first, 0))
    before = min(max(-start, 0), size)
    after = size - before - part.shape[axis]
    if not before and not after:
        return part
    padding = [0] * (2 * x.dim())
    from_last = x.dim() - 1 - axis % x.dim()  # torch counts from the last axis
    padding[2 * from_last : 2 * from_last + 2] = before, after
    return torch.nn.functional.pad(part, padding, value=outside)


concat = Operator(
    "concat",
    "x[a..., s@axis, b...], y[a..., t, b...] -> out[a..., j < |s| + |t|, b...]"
    " = x[a..., j, b...] if j < |s| else y[a..., j - |s|, b...]",
    kernel=lambda task, x, y: torch.cat((x, y), task.attributes["axis"]),
)

split = Operator(
    "split",
    "x[a..., n@axis, b...] -> left[a..., j < at, b...] = x[a..., j, b...];"
    " right[a..., k < |n| - at, b...] = x[a..., k + at, b...]",
    sizes=("at",),
    kernel=lambda task, x: tuple(
        torch.tensor_split(x, [task.attributes["at"]], task.attributes["axis"])
    ),
)

transpose = Operator(
    "transpose",
    "x[a..., i@dim0, b..., j@dim1, c...] -> out[a..., j, b..., i, c...]"
    " = x[a..., i, b..., j, c...]",
    kernel=lambda task, x: x.transpose(task.attributes["dim0"], task.attributes["dim1"]),
)

flatten = Operator(
    "flatten",
    "x[a..., m@axis, n, b...] -> out[a..., (m n), b...] = x[a..., m, n, b...]",
    kernel=lambda task, x: x.flatten(task.attributes["axis"], task.attributes["axis"] + 1),
)

unflatten = Operator(
    "unflatten",
    "x[a..., (m n)@axis, b...] -> out[a..., m < outer, n < inner, b...] = x[a..., (m n), b...]",
    sizes=("outer", "inner"),
    kernel=lambda task, x: x.unflatten(
        task.attributes["axis"], (task.length("m"), task.length("n"))
    ),
)

slice = Operator(
    "slice",
    "x[a..., n@axis, b...] -> out[a..., j < size, b...] = x[a..., j + start, b...]",
    sizes=("start", "size"),
    kernel=lambda task, x: cut_out(
        x, task.attributes["axis"], task.attributes["start"], task.attributes["size"]
    ),
)

pad = Operator(
    "pad",
    "x[a..., n@axis, b...] -> out[a..., j < size, b...] = x[a..., j - before, b...]",
    sizes=("before", "size"),
    kernel=lambda task, x: cut_out(
        x, task.attributes["axis"], -task.attributes["before"], task.attributes["size"]
    ),
)

stack = Operator(
    "stack",
    "x[a..., b...], y[a..., b...] -> out[a..., j@axis < 2, b...]"
    " = x[a..., b...] if j < 1 else y[a..., b...]",
    kernel=lambda task, x, y: torch.stack((x, y), task.attributes["axis"]),
)

expand = Operator(
    "expand",
    "x[a..., b...] -> out[a..., j@axis < size, b...] = x[a..., b...]",
    sizes=("size",),
    kernel=lambda task, x: x.unsqueeze(task.attributes["axis"]).expand(
        *x.shape[: task.attributes["axis"]],
        task.attributes["size"],
        *x.shape[task.attributes["axis"] :],
    ),
)

# ``like`` gives the size of the result and its cut. Its elements are not used. It is the first
# operand because it determines the position of the axis.
expand_as = Operator(
    "expand_as",
    "like[a..., j@axis, b...], x[a..., b...]"
    " -> out[a..., j, b...] = x[a..., b...] + 0 * like[a..., j, b...]",
    kernel=lambda task, like, x: x.unsqueeze(task.attributes["axis"]).expand_as(like),
)
"""A tensor repeated along one axis, as the mean of a row is for all of its elements."""


def _expand_vector(task: KernelTask, like: Tensor, x: Tensor) -> Tensor:
    after = like.dim() - 1 - task.attributes["axis"]
    return x.reshape(-1, *[1] * after).expand_as(like)


expand_vector = Operator(
    "expand_vector",
    "like[a..., j@axis, b...], x[j] -> out[a..., j, b...] = x[j] + 0 * like[a..., j, b...]",
    kernel=_expand_vector,
)
"""A vector repeated along all axes but one, as a weight for each channel is."""


def permute(value: Value, order: Sequence[int]) -> Value:
    """Return ``value`` with its dimensions in another order: dimension ``i`` is the former
    ``order[i]``.

    It takes the fewest transposes: for each cycle of the permutation one less than its length.
    Raises ValueError if ``order`` does not name each dimension once.
    """
    current = list(range(len(order)))
    if sorted(order) != current:
        raise ValueError(f"{list(order)} does not name each of {len(order)} dimensions once")
    for target, wanted in enumerate(order):
        source = current.index(wanted)
        if source != target:
            value = apply(transpose(dim0=target, dim1=source), value)
            current[target], current[source] = current[source], current[target]
    return value


OPERATORS = (
    *(concat, split, transpose, flatten, unflatten, slice, pad, stack),
    *(expand, expand_as, expand_vector),
)
