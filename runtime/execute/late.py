"""Products whose weight gets its gradient late: during a communication, or in a pass for weights.

Problem. Autograd computes the gradients of a product's weight and of its other operand together.
But the communication of the latter need not wait for the former.

Method. The backward pass of a product runs twice: first for the other operand, later for the weight
alone. Each run computes only the gradients that are asked for, so nothing is computed twice. At
most one gradient at a time waits for a communication. Tensors for a pass for weights (ZB-H1) are
held until then, even if the backward pass has recomputed them.
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

Delay = Callable[[Callable[[], None], int], None]
"""Delays a gradient. Arguments: the function that computes it, and the position of the
communication during which it may run."""


@dataclass
class DelayedGradient:
    """At most one gradient of a weight that is still to be computed. ``beside``: the position of
    the communication during which it may be computed."""

    beside: int = -1
    _compute: Callable[[], None] | None = None

    def put_off(self, compute: Callable[[], None], beside: int) -> None:
        """Delay a gradient. One that was delayed before is computed now."""
        self.settle()
        self._compute, self.beside = compute, beside

    def settle(self) -> None:
        """Compute the delayed gradient, if there is one."""
        compute, self._compute, self.beside = self._compute, None, -1
        if compute is not None:
            compute()


@dataclass
class WeightsPass:
    """The gradients of weights that the pass for weights of a slice computes, in the order of its
    backward pass."""

    _waiting: list[tuple[str, Callable[[], None]]] = field(
        default_factory=list[tuple[str, Callable[[], None]]]
    )

    def of(self, register: str) -> Delay:
        """A function that delays the gradient of a weight until this pass."""
        return lambda compute, _: self._waiting.append((register, compute))

    def run(self) -> Iterator[str]:
        """Compute the gradients. Yield the register of each weight after its gradient."""
        while self._waiting:
            register, compute = self._waiting.pop(0)
            compute()
            yield register


@dataclass
class _Saved:
    """A saved tensor of a product, or a note by which it can be recomputed."""

    packed: Any

    @property
    def value(self) -> Tensor:
        return unpacked(self.packed)

    def hold(self) -> None:
        """Replace a note by the tensor."""
        self.packed = self.value


@dataclass
class _Product:
    """A product whose backward pass runs twice."""

    compute: BlockFunction
    operand: int
    """The index of the weight among the operands."""
    weight: Tensor
    """The weight as an operand, such as a copy in the narrow format."""
    leaf: Tensor
    """The leaf of autograd that collects the weight's gradient."""
    beside: int
    delay: Delay
    pack: Callable[[Tensor], Any] | None = None
    """Replaces a saved tensor by a note if it can be recomputed. The notes are replaced by tensors
    in the backward pass, and held until the weight's gradient is computed."""
    saved: list[_Saved] = field(default_factory=list[_Saved])
    gradients: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """The gradients of the other operands, by their number."""

    def result(self, operands: Sequence[Tensor]) -> Tensor:
        with self._hooks():
            (result,) = self.compute(operands)
        return result

    def _hooks(self) -> AbstractContextManager[object]:
        pack = self.pack
        if pack is None:
            return nullcontext()

        def saved(value: Tensor) -> _Saved:
            self.saved.append(_Saved(pack(value)))
            return self.saved[-1]

        return torch.autograd.graph.saved_tensors_hooks(saved, lambda entry: entry.value)


class _Parted(Function):
    """A product of a weight and other operands. For autograd it depends on the others only."""

    @staticmethod
    def forward(ctx: Any, product: _Product, *others: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        anchor = torch.empty((), requires_grad=True)
        with torch.enable_grad():
            # The operands are not kept here, because they may be among the recomputed tensors.
            operands = [
                enter(value.detach(), anchor, partial(product.gradients.__setitem__, number))
                for number, value in enumerate(others)
            ]
            operands.insert(product.operand, product.weight)
            result = product.result(operands)
        ctx.product, ctx.anchor, ctx.edge = product, anchor, get_gradient_edge(result)
        ctx.count = len(others)
        return result.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        product: _Product = ctx.product
        edge: GradientEdge = ctx.edge
        gradient = gradients[0].detach()
        torch.autograd.backward([edge], [gradient], retain_graph=True, inputs=[ctx.anchor])
        of_others = tuple(product.gradients.pop(number) for number in range(ctx.count))
        compute_later = partial(torch.autograd.backward, [edge], [gradient], inputs=[product.leaf])
        for saved in product.saved:
            saved.hold()
        product.delay(compute_later, product.beside)
        return None, *of_others


def parted(
    compute: BlockFunction,
    operand: int,
    leaf: Tensor,
    delay: Delay,
    beside: int,
    blocks: Sequence[Tensor],
    pack: Callable[[Tensor], Any] | None = None,
) -> tuple[Tensor, ...]:
    """Run a product such that the gradient of its weight is computed after that of the others.

    ``operand``: the index of the weight. ``leaf``: the leaf of autograd that collects its gradient.
    ``delay``: called in the backward pass with the function that computes this gradient, and with
    ``beside``. ``pack``: as ``_Product.pack``; None if no saved tensor is recomputed.
    """
    others = [block for number, block in enumerate(blocks) if number != operand]
    if not (leaf.requires_grad and all(other.requires_grad for other in others)):
        return compute(blocks)
    product = _Product(compute, operand, blocks[operand], leaf, beside, delay, pack)
    result = _Parted.apply(product, *others)
    assert isinstance(result, Tensor)
    return (result,)
