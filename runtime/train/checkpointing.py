"""Run what torch checkpoints as if nobody had: once, and held.

Problem: a checkpoint computes a function again on the way back, and with it draws its random
numbers a second time, from a list that has none left (``runtime.train.replay``); a reentrant one
gives no gradients where they are asked for by name. Method: values and gradients are those of the
function itself, so as long as it is entered, torch's checkpoints call it. Exact, as a checkpoint
gives back the state of the random numbers; a reentrant one has no gradients where no operand has.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor


@contextmanager
def without_checkpoints() -> Generator[None]:
    """Within, both kinds of torch's checkpoints call their function, and hold what it makes."""
    module: Any = import_module("torch.utils.checkpoint")
    with (
        patch.object(module.CheckpointFunction, "apply", _called),
        patch.object(module, "_checkpoint_without_reentrant_generator", _nothing_else),
    ):
        yield


def _called(function: Callable[..., Any], preserves: bool, *args: Any) -> Any:
    has_gradients = any(arg.requires_grad for arg in args if isinstance(arg, Tensor))
    with torch.set_grad_enabled(torch.is_grad_enabled() and has_gradients):
        return function(*args)


def _nothing_else(*_: Any, **__: Any) -> Generator[None]:
    """Before and after the function."""
    yield
