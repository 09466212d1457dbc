"""Switch torch's activation checkpointing off, so that functions run once.

Problem. Activation checkpointing (torch.utils.checkpoint) runs a function again in the backward
pass, and then draws its random numbers a second time. The list of ``runtime.train.replay`` has no
more numbers by then. Also, reentrant checkpointing does not work with ``torch.autograd.grad``.

Method. Within ``without_checkpoints``, both kinds of checkpointing call their function directly,
and autograd saves its tensors. Values and gradients are the same.

Exact: checkpointing restores the state of the random number generator, so that it computes the same
values. As in reentrant checkpointing, there are no gradients if no operand has one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

NOT_REENTRANT = "_checkpoint_without_reentrant_generator"
"""The function of torch that runs before and after a function. Since torch 2.15 there is another
one, whose name begins like this."""


@contextmanager
def without_checkpoints() -> Generator[None]:
    """Within a block, let both kinds of torch's checkpointing call their function directly."""
    module: Any = import_module("torch.utils.checkpoint")
    with ExitStack() as stack:
        stack.enter_context(patch.object(module.CheckpointFunction, "apply", _call))
        for name in list(vars(module)):
            if name.startswith(NOT_REENTRANT):
                stack.enter_context(patch.object(module, name, _no_context))
        yield


def _call(function: Callable[..., Any], preserves: bool, *args: Any) -> Any:
    """Call a function in place of reentrant checkpointing."""
    has_gradients = any(arg.requires_grad for arg in args if isinstance(arg, Tensor))
    with torch.set_grad_enabled(torch.is_grad_enabled() and has_gradients):
        return function(*args)


def _no_context(*_: Any, **__: Any) -> Generator[None]:
    """Do nothing before and after the function."""
    yield
