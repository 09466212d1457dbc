"""Gradients of shards whose norm is that of the whole gradient.

A loop that knows nothing of shards takes norms: ``torch.nn.utils.clip_grad_norm_`` that of each
gradient, and of these that of all. Here the norm of a gradient is *pending*: that of this rank's
piece, or 0 where another rank stands for it. The norm of several pending ones is that over all
ranks, of one sum; so is the value of a single one, once it is looked at. All else is done to this
rank's piece. All ranks have to take the same norms, in the same order.
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
"""Within it, torch takes tensors of derived classes for plain ones."""


@dataclass(frozen=True)
class GradientPiece:
    """Whose a gradient is. ``counts``: whether this rank stands for all that hold its piece."""

    world: World
    counts: bool

    def __deepcopy__(self, memo: object) -> GradientPiece:
        """The same one: there is one world."""
        return self


def norm_of_ranks(world: World, own: Tensor, kind: float) -> float:
    """The norm of all ranks' norms, of which ``own`` are this rank's. All call together. ``kind``:
    as in ``torch.linalg.vector_norm``, above 0."""
    values: list[float] = own.double().flatten().tolist()
    if kind == inf:
        every = world.gather(nan if any(map(isnan, values)) else max(values, default=0.0))
        return nan if any(map(isnan, every)) else max(every)
    return world.total(sum(value**kind for value in values)) ** (1.0 / kind)


class Pending(Tensor):
    """Norms of pieces, of one kind, that have not been brought together yet."""

    world: World
    kind: float

    @classmethod
    def of(cls, own: Tensor, world: World, kind: float) -> Pending:
        """``own``: this rank's."""
        made = own.as_subclass(cls)
        made.world, made.kind = world, kind
        return made

    def whole(self) -> Tensor:
        """Each of the norms by itself, as a plain tensor. All ranks call together."""
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
        if func is torch.stack and (alike := _alike(first)) is not None:
            with plainly():
                return cls.of(func(*args, **kwargs), alike.world, alike.kind)
        if isinstance(first, Pending):
            if func is Tensor.to:
                with plainly():
                    return cls.of(func(*args, **kwargs), first.world, first.kind)
            if func is torch.linalg.vector_norm and _kind(func, args, kwargs) == first.kind:
                with plainly():
                    own = first.as_subclass(Tensor)
                    return own.new_tensor(norm_of_ranks(first.world, own, first.kind))
        if getattr(func, "__name__", "") not in ("__get__", "__set__"):
            args = [trees.tree_map(_looked_at, value) for value in args]
            kwargs = {name: trees.tree_map(_looked_at, value) for name, value in kwargs.items()}
        with plainly():
            return func(*args, **kwargs)


class Gradient(Tensor):
    """The gradient of a shard. Its norm is that of the whole gradient."""

    piece: GradientPiece

    @classmethod
    def of(cls, own: Tensor, piece: GradientPiece) -> Gradient:
        """The same memory."""
        made = own.as_subclass(cls)
        made.piece = piece
        return made

    def pending(self, kind: float, dtype: torch.dtype | None) -> Pending:
        """Its norm."""
        if not kind > 0:
            raise InputError("norm_type", f"expected a number above 0, got {kind}")
        with plainly():
            own = self.as_subclass(Tensor)
            if self.piece.counts and own.numel():
                norm = torch.linalg.vector_norm(own, kind, dtype=dtype)
            else:
                norm = own.new_zeros((), dtype=dtype)
            return Pending.of(norm, self.piece.world, kind)

    def __deepcopy__(self, memo: Any) -> Tensor:
        """A plain tensor."""
        with plainly():
            return self.as_subclass(Tensor).clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as a plain tensor."""
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
            given, dtype = args[0], kwargs.get("dtype")
            if isinstance(given, Gradient):
                return given.pending(kind, dtype)
            if func is _FOREACH and all(isinstance(one, Gradient) for one in given):
                return [one.pending(kind, dtype) for one in given]
        with plainly():
            return func(*args, **kwargs)


_FOREACH: Callable[..., Any] = torch._foreach_norm  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
_NORMS = (torch.linalg.vector_norm, torch.norm, Tensor.norm, _FOREACH)
"""Functions of a tensor and a kind of norm."""
_NAMES = ("ord", "p")
"""Under which these take the kind."""
_DIMENSIONS = ("dim", "keepdim", "out")


def _kind(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """Of a call of one of the functions, which norm of all elements it is; None for others."""
    given: list[Any] = [*args[1:2], *(kwargs[name] for name in _NAMES if name in kwargs), 2.0]
    if len(args) > 2 or any(kwargs.get(name) for name in _DIMENSIONS):
        return None
    kind = 2.0 if given[0] in (None, "fro") else given[0]
    return float(kind) if isinstance(kind, (int, float)) else None


def _alike(given: Any) -> Pending | None:
    """The first of several norms of one kind."""
    if not (isinstance(given, (list, tuple)) and given):
        return None
    first = given[0]
    if not isinstance(first, Pending):
        return None
    is_alike = all(isinstance(one, Pending) and one.kind == first.kind for one in given)
    return first if is_alike else None


def _looked_at(value: Any) -> Any:
    return value.whole() if isinstance(value, Pending) else value
