"""Check that a tensor of a user's data fits an input of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pcg.errors import InputError, one_line
from pcg.graph.graph import Leaf


def as_tensor(value: Any, where: str) -> Tensor:
    """A user's value for an input, as a tensor. Raises InputError if it cannot be converted."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        problem = one_line(f"expected a tensor, got {type(value).__name__}: {error}")
        raise InputError(where, problem) from error


def fitting(leaf: Leaf, value: Tensor, shape: tuple[int, ...], where: str) -> Tensor:
    """A user's tensor in the form that an input has. If the model takes integers, such as ids and
    labels, the user's tensor may have any type that holds them exactly, floats included.

    Raises InputError for another shape than ``shape``, for complex numbers, and for fractions and
    numbers out of range if the model takes integers.
    """
    if tuple(value.shape) != shape:
        raise InputError(where, f"expected shape {list(shape)}, got {list(value.shape)}")
    if value.is_complex():
        raise InputError(where, f"expected real numbers, got {_name(value.dtype)}")
    if leaf.below is None or not value.numel():
        return value
    if value.is_floating_point():
        # NaN fails the first test, and infinity the second.
        is_whole = (value == value.trunc()) & value.isfinite()
        if not bool(is_whole.all()):
            at, first = _first(~is_whole, value)
            expected = f"expected whole numbers from {leaf.least} to {leaf.below - 1}"
            raise InputError(where, f"{expected}, got {_name(value.dtype)} {first:g}{at}")
    # Converted before the comparison, because a uint8 tensor cannot be compared with 256 or more.
    numbers = value.to(torch.int64)
    # One pass over the numbers, and one wait for the device.
    smallest, largest = torch.stack(numbers.aminmax()).tolist()
    if smallest < leaf.least or largest >= leaf.below:
        outside = (numbers < leaf.least) | (numbers >= leaf.below)
        at, first = _first(outside, numbers)
        expected = f"expected integers from {leaf.least} to {leaf.below - 1}"
        raise InputError(where, f"{expected}, got {int(first)}{at}")
    return numbers


def exact_in(leaf: Leaf, dtype: torch.dtype) -> bool:
    """Whether a number format represents all integers of an input exactly."""
    largest = 2 ** _DIGITS.get(dtype, 53)
    return leaf.below is None or (leaf.below - 1 <= largest and -leaf.least <= largest)


_DIGITS = {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}
"""The binary digits of a format: it represents all integers up to 2 to that power exactly."""


def _first(bad: Tensor, value: Tensor) -> tuple[str, float]:
    """The index of the first bad element, as text, and its value."""
    index = bad.reshape(-1).nonzero()[0]
    place = [int(i) for i in torch.unravel_index(index[0], value.shape)]
    at = f" at {place}" if place else ""
    return at, float(value.reshape(-1)[index].item())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
