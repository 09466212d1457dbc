"""Attributes of a module, and what an export leaves in them.

A ``forward`` may keep its loss for a log, count its calls, or append to a list. Torch exports with
tensors and numbers that stand for any value, and these would stay in the module. A ``forward`` that
changes what is trained, or how, is refused: a program is the same in each step.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pcg.errors import InputError

if TYPE_CHECKING:
    from torch.nn import Module


@contextmanager
def restored(module: Module) -> Generator[None]:
    """Restore the attributes of all parts of a module after this context, and the elements of
    lists, dictionaries and sets among the attributes."""
    before = [(part, dict(vars(part))) for part in module.modules()]
    held = [
        (value, value.copy())
        for _, attributes in before
        for value in attributes.values()
        if isinstance(value, (list, dict, set))
    ]
    try:
        yield
    finally:
        for part, attributes in before:
            _refill(vars(part), attributes)
        for value, elements in held:
            _refill(value, elements)


def _refill(value: Any, elements: Any) -> None:
    """Give a collection these elements again, in the order that they had."""
    if isinstance(value, list):
        value[:] = elements
        return
    value.clear()
    value.update(elements)


@contextmanager
def same_after_forward(module: Module, where: str) -> Generator[None]:
    """Raise InputError, within this context, for a ``forward`` that changes parameters of a module
    or their ``requires_grad``, or the mode of a part. The program would have those of the first
    call in each step."""
    trained = {name: tensor.requires_grad for name, tensor in module.named_parameters()}
    parameters = dict[str, Any]()
    modes = dict[str, bool]()

    def before(*_: object) -> None:
        # An export has other tensors than the module in the place of its parameters.
        parameters.update(module.named_parameters(remove_duplicate=False))
        modes.update((name, part.training) for name, part in module.named_modules())

    def after(*_: object) -> None:
        now = dict(module.named_parameters(remove_duplicate=False))
        for name in {**parameters, **now}:
            if now.get(name) is not parameters.get(name):
                problem = f"forward puts another tensor in the place of parameter {name}"
                raise InputError(where, f"{problem}, expected the same tensor in each step")
            if name in trained and trained[name] != now[name].requires_grad:
                problem = f"forward changes requires_grad of parameter {name}, expected it as it is"
                raise InputError(where, f"{problem} when the module is made")
        for name, part in module.named_modules():
            if modes.get(name, part.training) != part.training:
                problem = f"forward changes the mode of {name or 'the module'}"
                raise InputError(where, f"{problem}, expected the same mode in each step")

    hooks = module.register_forward_pre_hook(before), module.register_forward_hook(after)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
