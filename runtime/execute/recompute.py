"""Run operators that save nothing, and recompute their results when the backward pass reads them.

Autograd saves the tensors that the backward pass reads. An operator that the plan recomputes saves
nothing. If another operator saves one of its results, a note is saved instead. A note refers to
the operator and to its operands, which are held or are notes themselves. A recomputed result is
held from its first use in the backward pass until the backward pass of the operator itself, which
is the last to use it.

A communication is repeated at a fixed position in the program, because all ranks have to meet
there. Its result is replaced by a note only for operators whose backward pass comes after that
position. Others save the result itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd import Function

from runtime.execute.kernels import BlockFunction


@dataclass
class _RecomputedOperator:
    """An operator that can be recomputed: its function and its operands."""

    compute: BlockFunction
    operands: tuple[Tensor | _Note, ...]
    needs: tuple[bool, ...]
    """Which operands have gradients."""
    held: tuple[list[Tensor], tuple[Tensor, ...]] | None = None
    """Operands and results, recorded by autograd, from the recomputation on."""

    @property
    def since(self) -> float:
        """The operator can be recomputed once the backward pass has come down to this position, the
        lowest one of its notes."""
        return min((o.result.since for o in self.operands if isinstance(o, _Note)), default=inf)

    def recomputed(self) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Recompute the operator, and the operators on which it depends. Return its operands and
        results. A loop in place of recursion allows chains of any length."""
        stack = [self]
        while stack:
            operator = stack[-1]
            missing = [] if operator.held is not None else operator._missing()
            stack += missing
            if not missing:
                operator._recompute()
                stack.pop()
        assert self.held is not None
        return self.held

    def release(self) -> None:
        """Drop all tensors. Nothing reads them any more."""
        self.held, self.operands = None, ()

    def _missing(self) -> list[_RecomputedOperator]:
        """The operators that have to be recomputed before this one."""
        origins = (o.result.origin for o in self.operands if isinstance(o, _Note))
        return [o for o in origins if isinstance(o, _RecomputedOperator) and o.held is None]

    def _recompute(self) -> None:
        if self.held is not None:
            return
        values = [o.value() if isinstance(o, _Note) else o for o in self.operands]
        with torch.enable_grad():
            operands = [
                value.detach().requires_grad_(needed)
                for value, needed in zip(values, self.needs, strict=True)
            ]
            self.held = operands, self.compute(operands)


@dataclass
class RepeatedCommunication:
    """A communication that the backward pass repeats."""

    communicate: Callable[[Tensor | None], Tensor | None]
    source: Tensor | _Note | None
    """The tensor that this rank sends. None if it sends none."""
    since: float
    """The position before whose backward pass it is repeated."""
    received: Tensor | None = None
    """Its result, from the repetition on."""

    def again(self) -> None:
        """Repeat the communication, together with all ranks that take part."""
        source = self.source
        self.received = self.communicate(source.value() if isinstance(source, _Note) else source)
        self.source = None

    def release(self) -> None:
        """Drop all tensors. Nothing reads them any more."""
        self.received = self.source = None


@dataclass(frozen=True)
class _Result:
    """Result number ``port`` of an operator or a communication. ``since``: that of its origin."""

    origin: _RecomputedOperator | RepeatedCommunication
    port: int
    since: float

    def value(self) -> Tensor:
        if isinstance(self.origin, _RecomputedOperator):
            return self.origin.recomputed()[1][self.port].detach()
        assert self.origin.received is not None, "repeated before its result is read"
        return self.origin.received


@dataclass(frozen=True)
class _Note:
    """A note that replaces a saved tensor: a view of a result that can be recomputed."""

    result: _Result
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def value(self) -> Tensor:
        """The tensor, as a view of the recomputed result."""
        return self.result.value().as_strided(self.size, self.stride, self.offset)


class _Recomputed(Function):
    """An operator that saves nothing and is recomputed in the backward pass."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, operator: _RecomputedOperator, *operands: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.operator = operator
        return operator.compute(operands)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        operator: _RecomputedOperator = ctx.operator
        operands, results = operator.recomputed()
        operator.held = None
        pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if r.requires_grad]
        operand_gradients = torch.autograd.grad(
            [result for result, _ in pairs],
            [value for value in operands if value.requires_grad],
            [gradient for _, gradient in pairs],
            allow_unused=True,
        )
        remaining = iter(operand_gradients)
        return None, *(next(remaining) if needed else None for needed in operator.needs)


@dataclass
class Notes:
    """The results of a pass that can be recomputed or communicated again, until the forward pass
    drops them. A result is found by its storage, so that views of it count as the result."""

    _results: dict[int, tuple[ref[Any], _Result]] = field(
        default_factory=dict[int, "tuple[ref[Any], _Result]"]
    )
    """By the address of the storage."""
    _position: float = 0.0
    """The position at which the current block of the forward pass begins."""
    _block: int = 0
    """The number of the current block."""
    _origins: dict[int, list[ref[_RecomputedOperator | RepeatedCommunication]]] = field(
        default_factory=dict[int, "list[ref[_RecomputedOperator | RepeatedCommunication]]"]
    )
    """The operators and communications of each block that can be repeated, while notes refer to
    them."""

    def __bool__(self) -> bool:
        """Whether any current result can be recomputed."""
        return bool(self._results)

    def begin(self, block: int, position: int) -> None:
        """Note that a block begins its forward pass, at a position."""
        self._block, self._position = block, position

    def run(self, compute: BlockFunction, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run an operator such that it can be recomputed."""
        kept = tuple(self._find(o) or o.detach() for o in operands)
        operator = _RecomputedOperator(compute, kept, tuple(o.requires_grad for o in operands))
        results: tuple[Tensor, ...] = _Recomputed.apply(operator, *operands)
        self._origins.setdefault(self._block, []).append(ref(operator))
        storages = {_storage(operand) for operand in operands}
        for port, result in enumerate(results):
            # A view of an operand takes no memory of its own.
            if _storage(result) not in storages:
                self._note(result, _Result(operator, port, operator.since))
        return results

    def moved(
        self,
        communicate: Callable[[Tensor | None], Tensor | None],
        since: int,
        source: Tensor | None,
        received: Tensor | None,
    ) -> RepeatedCommunication:
        """Note a communication that is repeated before the backward pass of position ``since``."""
        kept = None if source is None else self._find(source) or source.detach()
        repeated = RepeatedCommunication(communicate, kept, since)
        self._origins.setdefault(self._block, []).append(ref(repeated))
        if received is not None:
            self._note(received, _Result(repeated, 0, since))
        return repeated

    def end(self, block: int) -> None:
        """Note the end of a block's backward pass. Nothing reads its results any more."""
        for reference in self._origins.pop(block, ()):
            if (origin := reference()) is not None:
                origin.release()

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """A context in which autograd saves notes in place of results."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, unpacked)

    def _note(self, value: Tensor, result: _Result) -> None:
        storage, key = value.untyped_storage(), _storage(value)
        if storage.nbytes():
            # A later storage may have the same address.
            self._results[key] = ref(storage, lambda _: self._results.pop(key, None)), result

    def _find(self, value: Tensor) -> _Note | None:
        """A note for a tensor, if it can be recomputed when the current block needs it."""
        entry = self._results.get(_storage(value))
        if entry is None or entry[1].since < self._position:
            return None
        return _Note(entry[1], tuple(value.shape), value.stride(), int(value.storage_offset()))

    def pack(self, value: Tensor) -> Any:
        """The object to save for a tensor: a note, or the tensor itself."""
        return self._find(value) or value


def unpacked(packed: Any) -> Tensor:
    """The tensor for which ``Notes.pack`` returned an object."""
    return packed.value() if isinstance(packed, _Note) else packed


def _storage(value: Tensor) -> int:
    """The address of a tensor's storage."""
    return value.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
