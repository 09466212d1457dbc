"""Run one batch in micro-batches, forward and back.

Its slices may begin while those of the batch before are still under way, so that all that belongs
to one batch is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.execute.frame import Frame, Machinery
from runtime.execute.late import WeightsPass
from runtime.execute.segment import Block
from runtime.program.pipelined import Pipelined

Values = dict[str, Tensor]
Done = Callable[[int | None], None]
"""Told a number in ``Passes.backward_blocks``: blocks from it on have given the weights all
gradients. Told of none: what goes back now completes nothing."""


@dataclass(frozen=True)
class Parts:
    """The blocks of a rank's program. ``before``: what is done once, before slices; ``slices``: by
    slice and chunk; ``tail``: what joins them."""

    before: Sequence[Block]
    slices: Sequence[Sequence[Sequence[Block]]]
    tail: Sequence[Block]


class SlicedBatch:
    """One batch. Slices go through each chunk forward in order, and back in order; ``finish`` and
    ``go_back`` follow after the last one."""

    def __init__(
        self,
        number: int,
        shared: Machinery,
        parts: Parts,
        pipeline: Pipelined,
        inputs: tuple[Values, list[Values]],
        scale: float,
    ) -> None:
        """``shared``: with the weights to read. ``inputs``: those that are read as a whole, and
        those of each slice. ``scale``: what gradients are multiplied with."""
        self.number = number
        self.started = [0] * pipeline.interleave
        """Slices that have gone forward, by chunk."""
        self.outputs: Mapping[str, Tensor] = {}
        self._shared, self._parts, self._pipeline = shared, parts, pipeline
        self._scale = scale
        self._before = Frame(shared, parts.before)
        self._before.values.update(inputs[0])
        self._inputs = inputs[1]
        self._frames: dict[tuple[int, int], Frame] = {}
        """By slice and chunk."""
        self._weights: dict[tuple[int, int], WeightsPass] = {}
        """What slices that have gone back have left to do, by slice and chunk."""
        self._sums: Values = {}
        self._known: Values = {}

    def forward(self, chunk: int = 0) -> None:
        """Take the next slice forward through a chunk."""
        part = self.started[chunk]
        self._enter(part)
        # Every stage has taken that slice back by now, and so has received all of it.
        self._shared.world.settle_parts(self._shared.world.part - self._pipeline.lag)
        if not (part or chunk):
            self._before.forward()
            self._sums, self._known = self._zeros(), self._gradients_of_joined()
        values: Values = {}
        if not chunk:
            values, self._inputs[part] = self._inputs[part], {}
        blocks = self._parts.slices[part][chunk]
        outer = self._frames[part, chunk - 1] if chunk else self._before
        frame = Frame(self._shared, blocks, outer, self._sums, self._known, values)
        self._frames[part, chunk] = frame
        frame.forward()
        self.started[chunk] += 1

    def forget(self, part: int) -> None:
        """Drop a slice that will not be taken back."""
        for chunk in range(self._pipeline.interleave):
            del self._frames[part, chunk]

    def backward(self, part: int, chunk: int, done: Done) -> None:
        """Take a slice back through a chunk."""
        self._enter(part)
        frame = self._frames.pop((part, chunk))
        if self._pipeline.has_weights_pass:
            self._weights[part, chunk] = frame.weights_pass
        if part < len(self._parts.slices) - 1:
            done(None)
            frame.backward()
            return
        before = (self._parts.before, self._parts.tail, *self._parts.slices[part][:chunk])
        self._go_back(frame, done, sum(map(len, before)))

    def weights(self, part: int, chunk: int) -> Iterator[str]:
        """The pass for weights of a slice that has gone back: the register of each weight whose
        gradient is complete by it."""
        for register in self._weights.pop((part, chunk)).run():
            if part == len(self._parts.slices) - 1:
                yield register

    def finish(self, done: Done) -> Tensor | None:
        """Join the slices; this rank's part of the loss."""
        tail, loss = self._joined()
        if self._pipeline.tail_trains:
            begin_back(tail, self._scale)
            tail.values.clear()
            self._go_back(tail, done, len(self._parts.before))
        return loss

    def loss(self) -> Tensor | None:
        """Join the slices, of which none is taken back; this rank's part of the loss."""
        return self._joined()[1]

    def _joined(self) -> tuple[Frame, Tensor | None]:
        tail = Frame(self._shared, self._parts.tail, self._before, values=self._sums)
        tail.forward()
        self.outputs, loss = results(tail)
        return tail, loss

    def go_back(self, done: Done) -> None:
        """Take back what was done before the slices."""
        self._before.values.clear()
        self._go_back(self._before, done, 0)

    def _go_back(self, frame: Frame, done: Done, first: int) -> None:
        """``first``: the number in ``Passes.backward_blocks`` of the frame's first block."""
        done(first + len(frame.blocks))
        frame.backward(lambda number: done(first + number))

    def _enter(self, part: int) -> None:
        """What is sent from now on is of a slice."""
        world = self._shared.world
        world.batch = self.number
        world.part = self.number * len(self._parts.slices) + part

    def _gradients_of_joined(self) -> Values:
        """The tail's gradients of what it joins. It is linear, so zeros do for what is to come."""
        leaves = self._shared.leaves
        summed = {name: leaf.grad for name, leaf in leaves.items()}
        tail = Frame(self._shared, self._parts.tail, self._before, values=self._zeros())
        tail.forward()
        begin_back(tail, self._scale)
        tail.backward()
        joined = self._pipeline.joined
        gradients = {name: tail.gradients[name] for name in joined if name in tail.gradients}
        # What depends on the values is taken with the right ones, in the end.
        self._before.gradients.clear()
        for name, leaf in leaves.items():
            leaf.grad = summed[name]
        return gradients

    def _zeros(self) -> Values:
        shared = self._shared
        shapes, device = shared.program.shapes, shared.world.device
        return {
            name: torch.zeros(shapes[name], dtype=shared.format_of(name), device=device)
            for name in self._pipeline.joined
        }


def begin_back(frame: Frame, scale: float | Tensor) -> None:
    """The gradient of the loss is 1 where it counts, or the scale of the loss, one number."""
    program = frame.shared.program
    if program.loss is not None and program.loss in program.active:
        shape, device = program.shapes[program.loss], frame.shared.world.device
        ones = torch.ones(shape, dtype=frame.shared.format_of(program.loss), device=device)
        frame.add(program.loss, ones.mul_(scale))


def results(frame: Frame) -> tuple[dict[str, Tensor], Tensor | None]:
    """The outputs, by register, and this rank's part of the loss."""
    program = frame.shared.program
    outputs = {name: frame.value(name) for name in program.outputs}
    return outputs, frame.value(program.loss).sum() if program.loss else None
