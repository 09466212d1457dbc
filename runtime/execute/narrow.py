"""Weights in the narrow format of a mixed-precision step, and their gradients in the wide one.

Problem: to convert each weight, and each gradient back, starts two kernels for each weight, which
takes the host longer than the device if weights are small.

Method: the copies in the narrow format are leaves of autograd. All copies that a segment reads are
made by one call. If a step reads each copy once, their gradients are converted by a call for each
chunk of weights after the backward pass. Else each gradient is converted and added up in the wide
format as soon as it is there.

Complexity: a chunk of gradients is there in both formats for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

CHUNK, PARTS = 25 << 20, 16
"""The bytes of wide gradients that are made by one call, as far as weights are not larger, and the
least number of chunks."""


@dataclass
class NarrowWeights:
    """The copies of a program's weights in the narrow format.

    ``leaves``: the weights by register, whose ``grad`` gets the gradients. ``hook``: makes the
    function to call after each gradient of a register was added. None if nothing waits for single
    gradients and a step reads each copy once; then ``add_gradients`` is called after each backward
    pass.
    """

    leaves: Mapping[str, Tensor]
    dtype: torch.dtype
    hook: Callable[[str], Callable[[Tensor], None]] | None = None
    copies: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The copies that were made since the weights last changed, by register."""

    def read(self, registers: Iterable[str]) -> dict[str, Tensor]:
        """The copies of some weights. They are made if there are none yet."""
        asked = tuple(registers)
        missing = [register for register in asked if register not in self.copies]
        if missing:
            self._make(missing)
        return {register: self.copies[register] for register in asked}

    def forget(self) -> None:
        """Forget the copies, because the weights have changed."""
        self.copies.clear()

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add the gradients of all copies to those of their weights, in the wide format."""
        if self.hook is not None:
            return
        for registers in self._chunks():
            copies = [self.copies[register] for register in registers]
            narrow = [copy.grad for copy in copies if copy.grad is not None]
            wide = [
                torch.empty_like(gradient, dtype=self.leaves[register].dtype)
                for register, gradient in zip(registers, narrow, strict=True)
            ]
            _copy_all(wide, narrow)
            for register, copy, gradient in zip(registers, copies, wide, strict=True):
                copy.grad = None
                _add(self.leaves[register], gradient)

    def _make(self, registers: Sequence[str]) -> None:
        weights = [self.leaves[register].detach() for register in registers]
        copies = [torch.empty_like(weight, dtype=self.dtype) for weight in weights]
        with torch.no_grad():
            _copy_all(copies, weights)
        for register, copy in zip(registers, copies, strict=True):
            self.copies[register] = copy.requires_grad_(self.leaves[register].requires_grad)
            if copy.requires_grad and self.hook is not None:
                copy.register_post_accumulate_grad_hook(
                    _adding(self.leaves[register], self.hook(register))
                )

    def _chunks(self) -> Iterator[list[str]]:
        """The registers whose copies have gradients, in groups."""
        waiting = [register for register, copy in self.copies.items() if copy.grad is not None]
        most = min(CHUNK, sum(self.leaves[register].nbytes for register in waiting) // PARTS)
        chunk, size = list[str](), 0
        for register in waiting:
            chunk.append(register)
            size += self.leaves[register].nbytes
            if size >= most:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


def _copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors to others, which may have another format, by one kernel for many."""
    torch._foreach_copy_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        list(targets), list(sources)
    )


def _adding(leaf: Tensor, then: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    def added(copy: Tensor) -> None:
        """Move the gradient of a copy to its weight."""
        gradient, copy.grad = copy.grad, None
        if gradient is not None:
            _add(leaf, gradient.to(leaf.dtype))
        then(leaf)

    return added


def _add(leaf: Tensor, gradient: Tensor) -> None:
    leaf.grad = gradient if leaf.grad is None else leaf.grad.add_(gradient)
