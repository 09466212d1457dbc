"""Sum gradients of shared weights by all_reduce while the backward pass goes on.

Gradients are sent in the buffers that they share (``runtime.program.buckets``), as soon as one is
full. All ranks start their communication in the same order, so none waits for one that waits for
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.placement.region import elements, extent
from pcg.plan.naming import swapped_last
from runtime.program.buckets import Bucket

if TYPE_CHECKING:
    from torch import Tensor

    from runtime.world.collectives import World


@dataclass
class _Sum:
    """A bucket that has been sent: the gradients that it will hold, and what waits for them."""

    gradients: dict[str, Tensor]
    wait: Callable[[], None]


@dataclass
class GradientSync:
    """The gradients of one step's weights. ``take`` gives a weight's own gradient, once."""

    buckets: tuple[Bucket, ...]
    world: World
    take: Callable[[str], Tensor]
    reuses: bool = True
    """Whether buffers are used again in the next step; else the gradients of a step stay valid."""
    turned: frozenset[str] = frozenset()
    """The weights, on all ranks alike, whose memory is that of their transpose; so is that of their
    gradients."""
    _buffers: dict[int, Tensor] = field(default_factory=dict[int, "Tensor"])
    _spare: dict[int, Tensor] = field(default_factory=dict[int, "Tensor"])
    """Of the step before: used again where nobody holds its gradients any more."""
    _views: dict[str, Tensor] = field(default_factory=dict[str, "Tensor"])
    _filled: set[str] = field(default_factory=set[str])
    _bucket_of: dict[str, int] = field(default_factory=dict[str, int])
    _sent: list[_Sum] = field(default_factory=list[_Sum])

    def __post_init__(self) -> None:
        for number, bucket in enumerate(self.buckets):
            self._bucket_of.update((weight.register, number) for weight in bucket.weights)

    def complete(self, register: str) -> None:
        """A weight's gradient is complete: start what can be started."""
        self._fill(register)
        while len(self._sent) < len(self.buckets):
            bucket = self.buckets[len(self._sent)]
            if any(weight.register not in self._filled for weight in bucket.weights):
                return
            self._send(bucket)

    def flush(self, position: int) -> None:
        """All steps of the schedule from ``position`` on have been taken back: start all that waits
        for these only. Weights without a gradient have 0."""
        while len(self._sent) < len(self.buckets):
            bucket = self.buckets[len(self._sent)]
            if bucket.position < position:
                return
            for weight in bucket.weights:
                self._fill(weight.register)
            self._send(bucket)

    def finish(self) -> dict[str, Tensor]:
        """The complete gradient of every weight. They are valid until the next step."""
        self.flush(0)
        gradients: dict[str, Tensor] = {}
        for sent in self._sent:
            sent.wait()
            gradients.update(sent.gradients)
        self._sent.clear()
        self._filled.clear()
        if not self.reuses:
            self._spare, self._buffers = self._buffers, {}
            self._views.clear()
        return gradients

    def _fill(self, register: str) -> None:
        if register in self._filled:
            return
        self._filled.add(register)
        gradient = self.take(register)
        number = self._bucket_of[register]
        if self._is_alone(self.buckets[number]):
            turned = register in self.turned
            self._views[register] = gradient.mT.contiguous().mT if turned else gradient.contiguous()
            return
        if number not in self._buffers:
            self._make_buffer(number, gradient)
        self._views[register].copy_(gradient)

    def _is_alone(self, bucket: Bucket) -> bool:
        """Whether gradients need no buffer to be put together in."""
        return len(bucket.weights) == 1 or len(bucket.group) == 1

    def _make_buffer(self, number: int, like: Tensor) -> None:
        weights = self.buckets[number].weights
        sizes = [extent(weight.region) for weight in weights]
        lengths = [elements(weight.region) for weight in weights]
        spare = self._spare.pop(number, None)
        if spare is None or _is_held(spare) or spare.dtype != like.dtype:
            spare = torch.empty(sum(lengths), dtype=like.dtype, device=like.device)
        self._buffers[number] = spare
        for weight, size, part in zip(
            weights, sizes, self._buffers[number].split(lengths), strict=True
        ):
            if weight.register in self.turned:
                self._views[weight.register] = part.view(swapped_last(size)).mT
            else:
                self._views[weight.register] = part.view(size)

    def _send(self, bucket: Bucket) -> None:
        number = len(self._sent)
        gradients = {w.register: self._views[w.register] for w in bucket.weights}
        if len(bucket.group) == 1:
            self._drop(bucket)
            self._sent.append(_Sum(gradients, _nothing))
            return
        flat = self._buffers.get(number)
        if flat is None:
            ((register, own),) = gradients.items()
            flat = own.mT if register in self.turned else own
            self._drop(bucket)
        self._sent.append(_Sum(gradients, self.world.start_all_reduce(flat, bucket.group)))

    def _drop(self, bucket: Bucket) -> None:
        """Tensors of this step only must not outlive it."""
        for weight in bucket.weights:
            del self._views[weight.register]


def _is_held(tensor: Tensor) -> bool:
    """Whether another tensor has the same memory."""
    memory = tensor.untyped_storage()
    # By the tensor itself, and by what was just made to ask.
    return torch._C._storage_Use_Count(memory._cdata) > 2  # pyright: ignore[reportPrivateUsage]


def _nothing() -> None:
    """Nothing to wait for."""
