"""Copies of modules with other tensors in place of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from pcg.errors import InputError
from runtime.train.initial import tensors_of


def twin(model: Module, of: Callable[[Tensor], Tensor]) -> Module:
    """A copy of a module in which ``of(tensor)`` replaces each tensor. No tensor is copied. Raises
    InputError for a module that cannot be copied."""
    copies: dict[int, Any] = {}
    for tensor in tensors_of(model).values():
        if id(tensor) in copies:
            continue
        replacement = of(tensor)
        if isinstance(tensor, Parameter):
            replacement = Parameter(replacement, requires_grad=tensor.requires_grad)
        copies[id(tensor)] = replacement
    try:
        return copy.deepcopy(model, copies)
    except Exception as error:
        problem = (
            f"cannot be copied ({type(error).__name__}: {error}), expected a module on the CPU"
        )
        raise InputError(type(model).__name__, problem) from error


def without_elements(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and format on the meta device."""
    return torch.empty_like(tensor.detach(), device="meta")
