"""Sum gradients of shared weights by all_reduce while the backward pass goes on.

Gradients are sent in buckets (``runtime.program.buckets``), as soon as all gradients of a bucket
are complete. All ranks start their communication in the same order, so no two ranks wait for each
other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pcg.lazy import torch
from pcg.placement.region import elements, extent
from pcg.plan.naming import swapped_last
from runtime.program.buckets import Bucket
from runtime.program.program import Weight

if TYPE_CHECKING:
    from torch import Tensor

    from runtime.world.collectives import World


@dataclass
class _Sum:
    """A bucket that has been sent: its gradients by register, and a function that waits until they
    are summed."""

    gradients: dict[str, Tensor]
    wait: Callable[[], None]


@dataclass
class GradientSync:
    """The sums of the gradients of a step's weights, over the ranks that share a block."""

    buckets: tuple[Bucket, ...]
    world: World
    take: Callable[[str], Tensor]
    """Removes and returns this rank's gradient of a weight."""
    reuses: bool = True
    """Whether the next step reuses the buffers. If not, the gradients of a step stay valid."""
    turned: frozenset[str] = frozenset()
    """The weights, the same on all ranks, that are stored transposed in memory, as their gradients
    are."""
    _buffers: dict[int, Tensor] = field(default_factory=dict[int, "Tensor"])
    """The buffer of each bucket, by number."""
    _spare: dict[int, Tensor] = field(default_factory=dict[int, "Tensor"])
    """The buffers of the step before, which are reused if no gradient in them is held any more."""
    _views: dict[str, Tensor] = field(default_factory=dict[str, "Tensor"])
    """The gradient of each weight, a view of its buffer if it has one."""
    _filled: set[str] = field(default_factory=set[str])
    """The weights whose gradients of this step are in ``_views``."""
    _left: list[int] = field(default_factory=list[int])
    """For each bucket: the number of its weights that have no gradient yet in this step."""
    _bucket_of: dict[str, int] = field(default_factory=dict[str, int])
    _lengths: list[list[int]] = field(default_factory=list[list[int]])
    """For each bucket: the number of elements of each of its gradients."""
    _sizes: list[list[tuple[int, ...]]] = field(default_factory=list[list[tuple[int, ...]]])
    """For each bucket: the shape of each of its gradients, as it lies in memory."""
    _sent: list[_Sum] = field(default_factory=list[_Sum])
    """The buckets that have been sent in this step, in order."""

    def __post_init__(self) -> None:
        for number, bucket in enumerate(self.buckets):
            self._bucket_of.update((weight.register, number) for weight in bucket.weights)
            self._lengths.append([elements(weight.region) for weight in bucket.weights])
            self._sizes.append([self._size(weight) for weight in bucket.weights])
        self._empty()

    @cached_property
    def communicates(self) -> bool:
        """Whether other ranks have to add to any gradient. If not, ``complete`` need not be called:
        ``finish`` takes all gradients."""
        return any(len(bucket.group) > 1 for bucket in self.buckets)

    def complete(self, register: str) -> None:
        """Note that a weight's gradient is complete, and send all buckets that are complete now."""
        self._fill(register)
        while (number := len(self._sent)) < len(self.buckets) and not self._left[number]:
            self._send(self.buckets[number])

    def flush(self, position: int) -> None:
        """Send all buckets that wait only for steps of the schedule from ``position`` on, because
        the backward passes of these have finished. A weight without a gradient counts as zeros."""
        while len(self._sent) < len(self.buckets):
            bucket = self.buckets[len(self._sent)]
            if bucket.position < position:
                return
            for weight in bucket.weights:
                self._fill(weight.register)
            self._send(bucket)

    def finish(self) -> dict[str, Tensor]:
        """Wait for all sums. Return the gradient of every weight, by register. With ``reuses`` they
        are valid until the next step."""
        self.flush(0)
        gradients: dict[str, Tensor] = {}
        for sent in self._sent:
            sent.wait()
            gradients.update(sent.gradients)
        self._empty()
        if not self.reuses:
            self._spare, self._buffers = self._buffers, {}
            self._views.clear()
        return gradients

    def _empty(self) -> None:
        """Forget what was filled and sent, before a step."""
        self._sent.clear()
        self._filled.clear()
        self._left = [len(bucket.weights) for bucket in self.buckets]

    def _fill(self, register: str) -> None:
        if register in self._filled:
            return
        self._filled.add(register)
        gradient = self.take(register)
        number = self._bucket_of[register]
        self._left[number] -= 1
        if self._is_alone(self.buckets[number]):
            if register in self.turned:
                self._views[register] = gradient.mT.contiguous().mT
            else:
                self._views[register] = gradient.contiguous()
            return
        if number not in self._buffers:
            self._make_buffer(number, gradient)
        self._views[register].copy_(gradient)

    def _is_alone(self, bucket: Bucket) -> bool:
        """Whether the gradients of a bucket need no common buffer."""
        return len(bucket.weights) == 1 or len(bucket.group) == 1

    def _size(self, weight: Weight) -> tuple[int, ...]:
        """The shape of a weight's gradient, as it lies in memory."""
        size = tuple(extent(weight.region))
        return swapped_last(size) if weight.register in self.turned else size

    def _make_buffer(self, number: int, like: Tensor) -> None:
        lengths = self._lengths[number]
        buffer = self._spare.pop(number, None)
        if buffer is None or _is_held(buffer) or buffer.dtype != like.dtype:
            buffer = torch.empty(sum(lengths), dtype=like.dtype, device=like.device)
        self._buffers[number] = buffer
        parts = zip(
            self.buckets[number].weights, self._sizes[number], buffer.split(lengths), strict=True
        )
        for weight, size, part in parts:
            view = part.view(size)
            self._views[weight.register] = view.mT if weight.register in self.turned else view

    def _send(self, bucket: Bucket) -> None:
        number = len(self._sent)
        gradients = {w.register: self._views[w.register] for w in bucket.weights}
        if len(bucket.group) == 1:
            self._drop(bucket)
            self._sent.append(_Sum(gradients, _nothing))
            return
        flat = self._buffers.get(number)
        if flat is None:
            ((register, gradient),) = gradients.items()
            flat = gradient.mT if register in self.turned else gradient
            self._drop(bucket)
        self._sent.append(_Sum(gradients, self.world.start_all_reduce(flat, bucket.group)))

    def _drop(self, bucket: Bucket) -> None:
        """Forget gradients that are tensors of their own, so that they do not outlive the step."""
        for weight in bucket.weights:
            del self._views[weight.register]


def _is_held(tensor: Tensor) -> bool:
    """Whether another tensor has the same memory."""
    memory = tensor.untyped_storage()
    # One use is the tensor itself, another the storage object of the line above.
    return torch._C._storage_Use_Count(memory._cdata) > 2  # pyright: ignore[reportPrivateUsage]


def _nothing() -> None:
    """Do nothing: there is nothing to wait for."""
