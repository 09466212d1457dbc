"""Attributes of a module, and what an export leaves in them.

A ``forward`` may keep its loss for a log, count its calls, or append to a list. Torch exports with
tensors and numbers that stand for any value, and these would stay in the module.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
