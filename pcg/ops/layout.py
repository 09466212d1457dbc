"""Operators that only move elements: concat, split, transpose, and reshapes that split or merge."""

from __future__ import annotations

from pcg.lazy import torch
from pcg.operator import Operator

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

OPERATORS = (concat, split, transpose, flatten, unflatten)
