"""Gradients of shards whose norm is the norm of the whole gradient.

Problem. A training loop that knows nothing of shards computes norms of gradients:
``torch.nn.utils.clip_grad_norm_`` takes the norm of each gradient, then the norm of these norms.

Method. The norm of a shard's gradient is *pending*: it has the norm of this rank's block, or 0 if
the block counts on another rank. The norm of several pending norms is computed over all ranks, with
a single sum. The value of a single pending norm is computed over all ranks when it is read. All
other functions work on this rank's block. All ranks have to compute the same norms in the same
order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as trees

from pcg.errors import InputError
from runtime.world.collectives import World

plainly = torch._C.DisableTorchFunctionSubclass  # pyright: ignore[reportPrivateUsage]
"""A context in which torch treats tensors of derived classes as plain tensors."""


@dataclass(frozen=True)
class GradientPiece:
    """The block to which a gradient belongs. ``counts``: whether it counts on this rank, which is
    the first of those that hold it."""

    world: World
    counts: bool

    def __deepcopy__(self, memo: object) -> GradientPiece:
        """The same object, because there is a single world."""
        return self


def norm_of_ranks(world: World, own: Tensor, kind: float) -> float:
    """The norm of the norms of all ranks. ``own``: this rank's norms. ``kind``: the order of the
    norm, as in ``torch.linalg.vector_norm``, above 0. All ranks call together."""
    values: list[float] = own.double().flatten().tolist()
    if kind == inf:
        by_rank = world.gather(nan if any(map(isnan, values)) else max(values, default=0.0))
        return nan if any(map(isnan, by_rank)) else max(by_rank)
    return world.total(sum(value**kind for value in values)) ** (1.0 / kind)


class PendingNorm(Tensor):
    """Norms of this rank's blocks, of one order, that are not combined over ranks yet."""

    world: World
    kind: float

    @classmethod
    def of(cls, own: Tensor, world: World, kind: float) -> PendingNorm:
        """Pending norms from this rank's own norms."""
        norms = own.as_subclass(cls)
        norms.world, norms.kind = world, kind
        return norms

    def whole(self) -> Tensor:
        """Each norm over all ranks, as a plain tensor. All ranks call together."""
        with plainly():
            own = self.as_subclass(Tensor)
            parts = [norm_of_ranks(self.world, part, self.kind) for part in own.flatten()]
            return own.new_tensor(parts).view(own.shape)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if func is torch.stack and (pending := _first_of_same_kind(first)) is not None:
            with plainly():
                return cls.of(func(*args, **kwargs), pending.world, pending.kind)
        if isinstance(first, PendingNorm):
            if func is Tensor.to:
                with plainly():
                    return cls.of(func(*args, **kwargs), first.world, first.kind)
            if func is torch.linalg.vector_norm and _kind(func, args, kwargs) == first.kind:
                with plainly():
                    own = first.as_subclass(Tensor)
                    return own.new_tensor(norm_of_ranks(first.world, own, first.kind))
        if getattr(func, "__name__", "") not in ("__get__", "__set__"):
            args = [trees.tree_map(_evaluated, value) for value in args]
            kwargs = {name: trees.tree_map(_evaluated, value) for name, value in kwargs.items()}
        with plainly():
            return func(*args, **kwargs)


class Gradient(Tensor):
    """The gradient of a shard. Its norm is the norm of the whole gradient."""

    piece: GradientPiece

    @classmethod
    def of(cls, own: Tensor, piece: GradientPiece) -> Gradient:
        """The gradient of a block, from a plain tensor, with the same memory."""
        gradient = own.as_subclass(cls)
        gradient.piece = piece
        return gradient

    def pending(self, kind: float, dtype: torch.dtype | None) -> PendingNorm:
        """The pending norm of the gradient. Raises InputError unless ``kind`` is above 0."""
        if not kind > 0:
            raise InputError("norm_type", f"expected a number above 0, got {kind}")
        with plainly():
            own = self.as_subclass(Tensor)
            if self.piece.counts and own.numel():
                norm = torch.linalg.vector_norm(own, kind, dtype=dtype)
            else:
                norm = own.new_zeros((), dtype=dtype)
            return PendingNorm.of(norm, self.piece.world, kind)

    def __deepcopy__(self, memo: Any) -> Tensor:
        """A copy as a plain tensor."""
        with plainly():
            return self.as_subclass(Tensor).clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle it as a plain tensor."""
        with plainly():
            return self.as_subclass(Tensor).__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _NORMS and (kind := _kind(func, args, kwargs)) is not None:
            argument, dtype = args[0], kwargs.get("dtype")
            if isinstance(argument, Gradient):
                return argument.pending(kind, dtype)
            if func is _FOREACH and all(isinstance(gradient, Gradient) for gradient in argument):
                return [gradient.pending(kind, dtype) for gradient in argument]
        with plainly():
            return func(*args, **kwargs)


_FOREACH: Callable[..., Any] = torch._foreach_norm  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
_NORMS = (torch.linalg.vector_norm, torch.norm, Tensor.norm, _FOREACH)
"""Functions that compute norms. They take a tensor and the order of the norm."""
_NAMES = ("ord", "p")
"""The keyword arguments with the order of the norm."""
_DIMENSIONS = ("dim", "keepdim", "out")
"""Keyword arguments with which a call does not compute the norm of all elements."""


def _kind(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """The order of the norm that a call of one of ``_NORMS`` computes over all elements. None if it
    computes something else."""
    orders: list[Any] = [*args[1:2], *(kwargs[name] for name in _NAMES if name in kwargs), 2.0]
    if len(args) > 2 or any(kwargs.get(name) for name in _DIMENSIONS):
        return None
    kind = 2.0 if orders[0] in (None, "fro") else orders[0]
    return float(kind) if isinstance(kind, (int, float)) else None


def _first_of_same_kind(tensors: Any) -> PendingNorm | None:
    """The first of a list of pending norms of the same order. None for any other argument."""
    if not (isinstance(tensors, (list, tuple)) and tensors):
        return None
    first = tensors[0]
    if not isinstance(first, PendingNorm):
        return None
    same_kind = all(isinstance(norm, PendingNorm) and norm.kind == first.kind for norm in tensors)
    return first if same_kind else None


def _evaluated(value: Any) -> Any:
    """A value, with a pending norm replaced by its value over all ranks."""
    return value.whole() if isinstance(value, PendingNorm) else value
