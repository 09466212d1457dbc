"""Modules that are refused before they run: without a ``forward`` to follow, or with hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pcg.errors import InputError
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch.nn import Module

LOST = "is lost when the module is captured"


def refuse_kinds(module: Module, where: str) -> None:
    """Raise InputError for a module of TorchScript, and for a lazy one without parameters yet."""
    script = import_module("torch.jit").ScriptModule
    uninitialized = import_module("torch.nn.parameter").is_lazy
    for name, part in module.named_modules():
        what = f"{name or 'the module'} ({type(part).__name__})"
        if isinstance(part, script):
            problem = "is TorchScript, expected the module that it was made from"
            raise InputError(where, f"{what} {problem}")
        tensors = (*part.parameters(recurse=False), *part.buffers(recurse=False))
        if any(map(uninitialized, tensors)):
            problem = "has parameters without a shape yet, expected a module that has run once"
            raise InputError(where, f"{what} {problem}")


def refuse_hooks(module: Module, where: str) -> None:
    """Raise InputError for a module with hooks that see or change gradients. Forward hooks are
    captured as a part of the module."""
    common: Any = torch.nn.modules.module
    if common._global_backward_hooks or common._global_backward_pre_hooks:
        hooks = {**common._global_backward_hooks, **common._global_backward_pre_hooks}
        raise InputError(_place(hooks.values(), where), f"a backward hook of all modules {LOST}")
    parts: list[tuple[str, Any]] = list(module.named_modules())
    for name, part in parts:
        if part._backward_hooks or part._backward_pre_hooks:
            hooks = {**part._backward_hooks, **part._backward_pre_hooks}
            what = f"{name or 'the module'} ({type(part).__name__})"
            raise InputError(_place(hooks.values(), where), f"a backward hook of {what} {LOST}")
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner: Any = parameter
        given: Mapping[int, Any] = {
            **(owner._backward_hooks or {}),
            **(owner._post_accumulate_grad_hooks or {}),
        }
        if given:
            raise InputError(_place(given.values(), where), f"a hook of parameter {name} {LOST}")


def _place(hooks: Iterable[Any], where: str) -> str:
    """Return the line of the first hook, or ``where`` if it is no function of Python."""
    code = getattr(next(iter(hooks)), "__code__", None)
    return where if code is None else f"{code.co_filename}: line {code.co_firstlineno}"
