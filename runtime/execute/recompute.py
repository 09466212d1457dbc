"""Run operators that save nothing, and recompute them when the backward pass reads them.

Autograd saves what back-propagation will read. An operator that the plan computes again saves
nothing itself, and where others save a result of it, a note takes its place: of the operator and of
what it read, which is held, or is a note in turn. What is recomputed is held from its first use
in the backward pass to the backward pass of the operator itself, which is its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from runtime.execute.kernels import BlockFunction


@dataclass
class _Made:
    """An operator that can be computed again: how, and from what."""

    compute: BlockFunction
    operands: tuple[Tensor | _Result, ...]
    needs: tuple[bool, ...]
    """Which operands have gradients."""
    held: tuple[list[Tensor], tuple[Tensor, ...]] | None = None
    """Operands and results with autograd's record, while they are held again."""

    def recomputed(self) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        if self.held is None:
            values = [o.value() if isinstance(o, _Result) else o for o in self.operands]
            with torch.enable_grad():
                read = [
                    value.detach().requires_grad_(needed)
                    for value, needed in zip(values, self.needs, strict=True)
                ]
                self.held = read, self.compute(read)
        return self.held


@dataclass(frozen=True)
class _Result:
    """One of the results."""

    made: _Made
    port: int

    def value(self) -> Tensor:
        return self.made.recomputed()[1][self.port].detach()


@dataclass(frozen=True)
class _Note:
    """What autograd keeps in the place of a tensor: how it lies in the storage of a result."""

    result: _Result
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _Again(Function):
    """An operator that saves nothing and is recomputed in the backward pass."""

    @staticmethod
    def forward(ctx: Any, made: _Made, *operands: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.made = made
        return made.compute(operands)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        made: _Made = ctx.made
        read, results = made.recomputed()
        made.held = None
        pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if r.requires_grad]
        wanted = [value for value in read if value.requires_grad]
        gradients_back = torch.autograd.grad(
            [result for result, _ in pairs],
            wanted,
            [gradient for _, gradient in pairs],
            allow_unused=True,
        )
        left = iter(gradients_back)
        return None, *(next(left) if needed else None for needed in made.needs)


@dataclass
class Notes:
    """The results of one pass that are to be computed again, as long as they are held forward.

    Tensors are known by their storage, so that views of a result count as the result."""

    _known: dict[int, _Result] = field(default_factory=dict[int, _Result])

    def __bool__(self) -> bool:
        """Whether there is anything that could be computed again."""
        return bool(self._known)

    def run(self, compute: BlockFunction, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run an operator such that it can be computed again."""
        read = tuple(self._find(o) or o.detach() for o in operands)
        made = _Made(compute, read, tuple(o.requires_grad for o in operands))
        results: tuple[Tensor, ...] = _Again.apply(made, *operands)
        storages = {_storage(operand) for operand in operands}
        for port, result in enumerate(results):
            # A view of an operand takes no memory of its own.
            if (storage := _storage(result)) and storage not in storages:
                self._known[storage] = _Result(made, port)
        return results

    def forget(self, value: Tensor) -> None:
        """A tensor goes. Its storage may be given to another one."""
        self._known.pop(_storage(value), None)

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Within them, notes are saved in the place of results."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def _find(self, value: Tensor) -> _Result | None:
        known = self._known.get(_storage(value))
        return known if known is not None and _is_plain(value) else None

    def _pack(self, value: Tensor) -> Any:
        known = self._known.get(_storage(value))
        if known is None:
            return value
        return _Note(known, tuple(value.shape), value.stride(), int(value.storage_offset()))


def _unpack(packed: Any) -> Tensor:
    if not isinstance(packed, _Note):
        return packed
    return packed.result.value().as_strided(packed.size, packed.stride, packed.offset)


def _is_plain(value: Tensor) -> bool:
    """Whether it is all of its storage, and no view that shows it otherwise."""
    whole = value.numel() * value.element_size() == value.untyped_storage().nbytes()
    return value.is_contiguous() and whole


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()
