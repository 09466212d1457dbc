"""Run operators that save nothing, and recompute them when the backward pass reads them.

Autograd saves what back-propagation will read. An operator that the plan computes again saves
nothing itself, and where others save a result of it, a note takes its place: of the operator and of
what it read, which is held, or is a note in turn. What is recomputed is held from its first use
in the backward pass to the backward pass of the operator itself, which is its last.

Communication is done again where the program says, for all ranks have to meet there. A note of what
it brings is taken only by what goes back later than that; what would go back earlier keeps it.
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
class _Made:
    """An operator that can be computed again: how, and from what."""

    compute: BlockFunction
    operands: tuple[Tensor | _Note, ...]
    needs: tuple[bool, ...]
    """Which operands have gradients."""
    held: tuple[list[Tensor], tuple[Tensor, ...]] | None = None
    """Operands and results with autograd's record, while they are held again."""

    @property
    def since(self) -> float:
        """The position before whose backward pass it can first be computed again."""
        return min((o.result.since for o in self.operands if isinstance(o, _Note)), default=inf)

    def recomputed(self) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """What it read and made, once more; chains of any length are gone through in a loop."""
        wanted = [self]
        while wanted:
            made = wanted[-1]
            missing = [] if made.held is not None else made._missing()
            wanted += missing
            if not missing:
                made._compute_again()
                wanted.pop()
        assert self.held is not None
        return self.held

    def release(self) -> None:
        """Nothing reads it any more."""
        self.held, self.operands = None, ()

    def _missing(self) -> list[_Made]:
        """The operators that have to be computed again before this one."""
        makers = (o.result.made for o in self.operands if isinstance(o, _Note))
        return [made for made in makers if isinstance(made, _Made) and made.held is None]

    def _compute_again(self) -> None:
        if self.held is not None:
            return
        values = [o.value() if isinstance(o, _Note) else o for o in self.operands]
        with torch.enable_grad():
            read = [
                value.detach().requires_grad_(needed)
                for value, needed in zip(values, self.needs, strict=True)
            ]
            self.held = read, self.compute(read)


@dataclass
class Moved:
    """A communication that is done again: how, from what, and ``since`` which position of the
    backward pass. ``source``: None where this rank has none."""

    move: Callable[[Tensor | None], Tensor | None]
    source: Tensor | _Note | None
    since: float
    received: Tensor | None = None
    """What it brings, while that is held again."""

    def again(self) -> None:
        """Communicate, with all ranks that take part."""
        source = self.source
        self.received = self.move(source.value() if isinstance(source, _Note) else source)
        self.source = None

    def release(self) -> None:
        """Nothing reads it any more."""
        self.received = self.source = None


@dataclass(frozen=True)
class _Result:
    """One of the results."""

    made: _Made | Moved
    port: int
    since: float

    def value(self) -> Tensor:
        if isinstance(self.made, _Made):
            return self.made.recomputed()[1][self.port].detach()
        assert self.made.received is not None, "was communicated again before it is read"
        return self.made.received


@dataclass(frozen=True)
class _Note:
    """What is kept in the place of a tensor: how it lies in the storage of a result."""

    result: _Result
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def value(self) -> Tensor:
        """The tensor, of the result as it was made again."""
        return self.result.value().as_strided(self.size, self.stride, self.offset)


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
    """The results of one pass that are to be computed or communicated again, as long as they are
    held forward. Tensors are known by their storage, so that views of a result count as the result.
    """

    _known: dict[int, tuple[ref[Any], _Result]] = field(
        default_factory=dict[int, "tuple[ref[Any], _Result]"]
    )
    _at: float = 0.0
    """The position that goes forward."""
    _block: int = 0
    _made: dict[int, list[ref[_Made | Moved]]] = field(
        default_factory=dict[int, "list[ref[_Made | Moved]]"]
    )
    """By block, what can be made again, as long as anything has a note of it."""

    def __bool__(self) -> bool:
        """Whether there is anything that could be made again."""
        return bool(self._known)

    def begin(self, block: int, position: int) -> None:
        """What goes forward from now on is of a block, which begins at a position."""
        self._block, self._at = block, position

    def run(self, compute: BlockFunction, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run an operator such that it can be computed again."""
        read = tuple(self._find(o) or o.detach() for o in operands)
        made = _Made(compute, read, tuple(o.requires_grad for o in operands))
        results: tuple[Tensor, ...] = _Again.apply(made, *operands)
        self._made.setdefault(self._block, []).append(ref(made))
        storages = {_storage(operand) for operand in operands}
        for port, result in enumerate(results):
            # A view of an operand takes no memory of its own.
            if _storage(result) not in storages:
                self._note(result, _Result(made, port, made.since))
        return results

    def moved(
        self,
        move: Callable[[Tensor | None], Tensor | None],
        since: int,
        source: Tensor | None,
        received: Tensor | None,
    ) -> Moved:
        """Note what was communicated, and can be again from the backward pass of ``since`` on."""
        read = None if source is None else self._find(source) or source.detach()
        made = Moved(move, read, since)
        self._made.setdefault(self._block, []).append(ref(made))
        if received is not None:
            self._note(received, _Result(made, 0, since))
        return made

    def end(self, block: int) -> None:
        """A block has gone back: nothing reads again what it made."""
        for one in self._made.pop(block, ()):
            if (made := one()) is not None:
                made.release()

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Within them, notes are saved in the place of results."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, unpacked)

    def _note(self, value: Tensor, result: _Result) -> None:
        storage, key = value.untyped_storage(), _storage(value)
        if storage.nbytes():
            # The key may be given to another storage when this one has gone.
            self._known[key] = ref(storage, lambda _: self._known.pop(key, None)), result

    def _find(self, value: Tensor) -> _Note | None:
        """A note in the place of a tensor, if it can be made again in time."""
        known = self._known.get(_storage(value))
        if known is None or known[1].since < self._at:
            return None
        return _Note(known[1], tuple(value.shape), value.stride(), int(value.storage_offset()))

    def pack(self, value: Tensor) -> Any:
        """What is saved in the place of a tensor: a note, or itself."""
        return self._find(value) or value


def unpacked(packed: Any) -> Tensor:
    """What was packed."""
    return packed.value() if isinstance(packed, _Note) else packed


def _storage(value: Tensor) -> int:
    return value.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
