"""Products whose weight gets its gradient while that of the other operand is sent.

Autograd knows the backward pass of a product as one thing. Here it is entered twice: by the other
operands, and later by the weight alone. Each time torch computes what is asked for and no more, so
that nothing is done twice. At most one gradient is put off at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import GradientEdge, get_gradient_edge

from runtime.execute.kernels import BlockFunction
from runtime.execute.segment import enter


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
class _Product:
    """A product that is entered twice: ``leaf`` is the weight that collects the gradient, and
    ``weight`` what is computed with, at position ``operand``."""

    compute: BlockFunction
    operand: int
    weight: Tensor
    leaf: Tensor
    beside: int
    off: PutOff
    gradients: dict[int, Tensor] = field(default_factory=dict[int, Tensor])


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
            (result,) = product.compute(read)
        ctx.product, ctx.anchor, ctx.edge = product, anchor, get_gradient_edge(result)
        ctx.count = len(others)
        return result.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        product: _Product = ctx.product
        edge: GradientEdge = ctx.edge
        gradient = gradients[0].detach()
        torch.autograd.backward([edge], [gradient], retain_graph=True, inputs=[ctx.anchor])
        found = tuple(product.gradients.pop(number) for number in range(ctx.count))
        later = partial(torch.autograd.backward, [edge], [gradient], inputs=[product.leaf])
        product.off.put_off(later, product.beside)
        return None, *found


def parted(
    compute: BlockFunction,
    operand: int,
    leaf: Tensor,
    off: PutOff,
    beside: int,
    blocks: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Run a product such that its weight, at a position, gets its gradient after the others.
    ``leaf``: what collects it."""
    others = [block for number, block in enumerate(blocks) if number != operand]
    if not (leaf.requires_grad and all(other.requires_grad for other in others)):
        return compute(blocks)
    product = _Product(compute, operand, blocks[operand], leaf, beside, off)
    result = _Parted.apply(product, *others)
    assert isinstance(result, Tensor)
    return (result,)
