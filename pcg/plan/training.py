"""The memory of an optimizer for each weight, and the sizes of gradient buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from pcg.errors import InputError

Optimizer: TypeAlias = Literal["sgd", "momentum", "adam"]

STATES: Mapping[Optimizer, int] = {"sgd": 0, "momentum": 1, "adam": 2}
"""Tensors of a weight's size that it keeps from step to step, beside the weight: a moving average
of the gradient, and Adam one of its square (Kingma and Ba, ICLR 2015)."""
STATE_BYTES = 4
"""States are float32, whatever the weights are."""

BUCKET_BYTES = 25 << 20
"""A buffer of gradients is full, and sent, when it holds as much, as in PyTorch (Li et al., VLDB
2020)."""
FIRST_BYTES = 1 << 20
"""The first one is full sooner, so that communication starts early."""


def optimizer_of(name: str) -> Optimizer:
    """The optimizer of a name. Raises InputError for any other."""
    for known in get_args(Optimizer):
        if name == known:
            return known
    expected = ", ".join(get_args(Optimizer))
    raise InputError(f"optimizer {name}", f"unknown, expected one of {expected}")


def update_bytes(itemsize: int, optimizer: Optimizer) -> int:
    """Bytes of an element that an update moves: it reads the weight, its gradient and the states,
    and writes the weight and the states."""
    return 3 * itemsize + 2 * STATES[optimizer] * STATE_BYTES


def held_bytes(itemsize: int, optimizer: Optimizer) -> int:
    """Bytes of an element of a weight that is trained: itself, its gradient and the states."""
    return 2 * itemsize + STATES[optimizer] * STATE_BYTES
