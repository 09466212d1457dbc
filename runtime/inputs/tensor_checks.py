"""Check that a tensor of a user's data fits an input of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pcg.errors import InputError, one_line
from pcg.graph.graph import Leaf


def as_tensor(value: Any, where: str) -> Tensor:
    """What a user gives for an input, as a tensor. Raises InputError where it cannot be one."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        problem = one_line(f"expected a tensor, got {type(value).__name__}: {error}")
        raise InputError(where, problem) from error


def fitting(leaf: Leaf, value: Tensor, shape: tuple[int, ...], where: str) -> Tensor:
    """A tensor for an input, of ``shape``. Where the model takes whole numbers, as ids and labels
    are, any type that holds them exactly does, floats too.

    Raises InputError for another shape, a complex tensor, fractions, or what is out of range.
    """
    if tuple(value.shape) != shape:
        raise InputError(where, f"expected shape {list(shape)}, got {list(value.shape)}")
    if value.is_complex():
        raise InputError(where, f"expected real numbers, got {_name(value.dtype)}")
    if leaf.below is None or not value.numel():
        return value
    if value.is_floating_point():
        # Of NaN and infinity neither holds.
        whole = (value == value.trunc()) & value.isfinite()
        if not bool(whole.all()):
            at, first = _first(~whole, value)
            expected = f"expected whole numbers from {leaf.least} to {leaf.below - 1}"
            raise InputError(where, f"{expected}, got {_name(value.dtype)} {first:g}{at}")
    # Not compared as what it is: unsigned bytes know no bound above 255.
    numbers = value.to(torch.int64)
    outside = (numbers < leaf.least) | (numbers >= leaf.below)
    if bool(outside.any()):
        at, first = _first(outside, numbers)
        expected = f"expected integers from {leaf.least} to {leaf.below - 1}"
        raise InputError(where, f"{expected}, got {int(first)}{at}")
    return numbers


def exact_in(leaf: Leaf, dtype: torch.dtype) -> bool:
    """Whether a format holds all integers that an input may have."""
    largest = 2 ** _DIGITS.get(dtype, 53)
    return leaf.below is None or (leaf.below - 1 <= largest and -leaf.least <= largest)


_DIGITS = {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}
"""Binary digits of a number, so that it holds the integers up to 2 to that."""


def _first(bad: Tensor, value: Tensor) -> tuple[str, float]:
    """Where the first one is, in words, and what."""
    index = bad.reshape(-1).nonzero()[0]
    place = [int(i) for i in torch.unravel_index(index[0], value.shape)]
    at = f" at {place}" if place else ""
    return at, float(value.reshape(-1)[index].item())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
