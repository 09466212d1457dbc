"""Products whose weight gets its gradient while that of the other operand is sent, or in a pass
for weights.

Autograd knows the backward pass of a product as one thing. Here it is entered twice: by the other
operands, and later by the weight alone. Each time torch computes what is asked for and no more, so
that nothing is done twice. At most one gradient is put off beside communication at a time. What is
put off to a pass for weights is held until then, also where it is recomputed in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import GradientEdge, get_gradient_edge

from runtime.execute.kernels import BlockFunction
from runtime.execute.recompute import unpacked
from runtime.execute.segment import enter

PutsOff = Callable[[Callable[[], None], int], None]
"""Told how to compute a gradient later, and beside the communication of which position."""


@dataclass
class PutOff:
    """The gradient of a weight that is still to be computed, if there is one. ``beside``: the
    position of the communication beside which it may be."""

    beside: int = -1
    _compute: Callable[[], None] | None = None

    def put_off(self, compute: Callable[[], None], beside: int) -> None:
        """Compute a gradient later, and the one before now."""
        self.settle()
        self._compute, self.beside = compute, beside

    def settle(self) -> None:
        """Compute what was put off."""
        compute, self._compute, self.beside = self._compute, None, -1
        if compute is not None:
            compute()


@dataclass
class WeightsPass:
    """The gradients of weights that a slice has still to compute, in the order of its backward
    pass."""

    _waiting: list[tuple[str, Callable[[], None]]] = field(
        default_factory=list[tuple[str, Callable[[], None]]]
    )

    def of(self, register: str) -> PutsOff:
        """Where the gradient of a weight is put off to."""
        return lambda compute, _: self._waiting.append((register, compute))

    def run(self) -> Iterator[str]:
        """Compute them; the register of each weight once it has its gradient."""
        while self._waiting:
            register, compute = self._waiting.pop(0)
            compute()
            yield register


@dataclass
class _Saved:
    """What a product saves: a tensor, or a note of how to make it again."""

    packed: Any

    @property
    def value(self) -> Tensor:
        return unpacked(self.packed)

    def hold(self) -> None:
        """Keep what is there now."""
        self.packed = self.value


@dataclass
class _Product:
    """A product that is entered twice: ``leaf`` is the weight that collects the gradient, and
    ``weight`` what is computed with, at position ``operand``."""

    compute: BlockFunction
    operand: int
    weight: Tensor
    leaf: Tensor
    beside: int
    puts_off: PutsOff
    pack: Callable[[Tensor], Any] | None = None
    """What stands for a saved tensor that is not kept until the backward pass. Then what the
    weight's gradient reads is held from the backward pass on."""
    saved: list[_Saved] = field(default_factory=list[_Saved])
    gradients: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def made(self, read: Sequence[Tensor]) -> Tensor:
        """The result, of what is read."""
        with self._hooks():
            (result,) = self.compute(read)
        return result

    def _hooks(self) -> AbstractContextManager[object]:
        pack = self.pack
        if pack is None:
            return nullcontext()

        def saved(value: Tensor) -> _Saved:
            self.saved.append(_Saved(pack(value)))
            return self.saved[-1]

        return torch.autograd.graph.saved_tensors_hooks(saved, lambda own: own.value)


class _Parted(Function):
    """A product of a weight and other operands, which autograd knows alone."""

    @staticmethod
    def forward(ctx: Any, product: _Product, *others: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        anchor = torch.empty((), requires_grad=True)
        with torch.enable_grad():
            # What is entered by is not held: it may be among what is computed again.
            read = [
                enter(value.detach(), anchor, partial(product.gradients.__setitem__, number))
                for number, value in enumerate(others)
            ]
            read.insert(product.operand, product.weight)
            result = product.made(read)
        ctx.product, ctx.anchor, ctx.edge = product, anchor, get_gradient_edge(result)
        ctx.count = len(others)
        return result.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        product: _Product = ctx.product
        edge: GradientEdge = ctx.edge
        gradient = gradients[0].detach()
        torch.autograd.backward([edge], [gradient], retain_graph=True, inputs=[ctx.anchor])
        popped = tuple(product.gradients.pop(number) for number in range(ctx.count))
        later = partial(torch.autograd.backward, [edge], [gradient], inputs=[product.leaf])
        for saved in product.saved:
            saved.hold()
        product.puts_off(later, product.beside)
        return None, *popped


def parted(
    compute: BlockFunction,
    operand: int,
    leaf: Tensor,
    puts_off: PutsOff,
    beside: int,
    blocks: Sequence[Tensor],
    pack: Callable[[Tensor], Any] | None = None,
) -> tuple[Tensor, ...]:
    """Run a product such that its weight, at a position, gets its gradient after the others.
    ``leaf``: what collects it; ``puts_off``: told how to compute it, and ``beside``; ``pack``: as
    of a product whose saved tensors may be made again, to be held from the backward pass on."""
    others = [block for number, block in enumerate(blocks) if number != operand]
    if not (leaf.requires_grad and all(other.requires_grad for other in others)):
        return compute(blocks)
    product = _Product(compute, operand, blocks[operand], leaf, beside, puts_off, pack)
    result = _Parted.apply(product, *others)
    assert isinstance(result, Tensor)
    return (result,)
