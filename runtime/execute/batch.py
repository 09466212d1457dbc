"""Run the forward and backward passes of a batch that is cut in slices (micro-batches).

Slices of a batch may start while slices of the batch before are still under way. So the state of
each batch is kept apart, in an object of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.execute.frame import Frame, FrameContext
from runtime.execute.late import WeightsPass
from runtime.execute.segment import Block
from runtime.program.pipelined import PipelineProgram

Values = dict[str, Tensor]
BlockCallback = Callable[[int | None], None]
"""Called with a number in ``Passes.backward_blocks``: the backward passes of the blocks from this
number on have finished for the last time in this step. Called with None before the backward pass
of a slice other than the last, which completes no gradient."""


@dataclass(frozen=True)
class ProgramBlocks:
    """The blocks of a rank's program."""

    before: Sequence[Block]
    """The blocks before the slices, which run once."""
    slices: Sequence[Sequence[Sequence[Block]]]
    """The blocks of each slice, by chunk."""
    tail: Sequence[Block]
    """The blocks that join the slices."""


class SlicedBatch:
    """A batch in slices. Through each chunk, the slices go forward in order and backward
    in order. ``finish`` and ``go_back`` follow after the last slice."""

    def __init__(
        self,
        number: int,
        shared: FrameContext,
        parts: ProgramBlocks,
        pipeline: PipelineProgram,
        inputs: tuple[Values, list[Values]],
        scale: float,
    ) -> None:
        """``shared``: has the weights to read. ``inputs``: those of the whole batch, and those of
        each slice. ``scale``: the loss scale, by which gradients are multiplied."""
        self.number = number
        self.started = [0] * pipeline.interleave
        """The number of slices that have gone forward, by chunk."""
        self.outputs: Mapping[str, Tensor] = {}
        self._shared, self._parts, self._pipeline = shared, parts, pipeline
        self._scale = scale
        self._before = Frame(shared, parts.before)
        self._before.values.update(inputs[0])
        self._inputs = inputs[1]
        self._frames: dict[tuple[int, int], Frame] = {}
        """The frames of slices between forward and backward pass, by slice and chunk."""
        self._weights: dict[tuple[int, int], WeightsPass] = {}
        """The gradients of weights left to compute after the backward pass, by slice and chunk."""
        self._sums: Values = {}
        """The registers to which slices add, for the tail."""
        self._known: Values = {}
        """The gradients of these registers, which are known before the slices."""

    def forward(self, chunk: int = 0) -> None:
        """Run the forward pass of the next slice through a chunk."""
        part = self.started[chunk]
        self._enter(part)
        # All stages have finished the backward pass of that slice, so its messages have arrived.
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
        """Drop a slice that will have no backward pass."""
        for chunk in range(self._pipeline.interleave):
            del self._frames[part, chunk]

    def backward(self, part: int, chunk: int, done: BlockCallback) -> None:
        """Run the backward pass of a slice through a chunk."""
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
        """Run the pass for weights of a slice, after its backward pass. Yield the register of each
        weight whose gradient is complete then."""
        for register in self._weights.pop((part, chunk)).run():
            if part == len(self._parts.slices) - 1:
                yield register

    def finish(self, done: BlockCallback) -> Tensor | None:
        """Join the slices, and run the backward pass of the tail if it trains. Return this rank's
        part of the loss, if it has one."""
        tail, loss = self._joined()
        if self._pipeline.tail_trains:
            begin_back(tail, self._scale)
            tail.values.clear()
            self._go_back(tail, done, len(self._parts.before))
        return loss

    def loss(self) -> Tensor | None:
        """Join the slices without a backward pass. Return this rank's part of the loss, if any."""
        return self._joined()[1]

    def _joined(self) -> tuple[Frame, Tensor | None]:
        tail = Frame(self._shared, self._parts.tail, self._before, values=self._sums)
        tail.forward()
        self.outputs, loss = results(tail)
        return tail, loss

    def go_back(self, done: BlockCallback) -> None:
        """Run the backward pass of the part before the slices."""
        self._before.values.clear()
        self._go_back(self._before, done, 0)

    def _go_back(self, frame: Frame, done: BlockCallback, first: int) -> None:
        """Run the backward pass of a frame. ``first``: the number of its first block in
        ``Passes.backward_blocks``."""
        done(first + len(frame.blocks))
        frame.backward(lambda number: done(first + number))

    def _enter(self, part: int) -> None:
        """Attribute the messages from now on to a slice."""
        world = self._shared.world
        world.batch = self.number
        world.part = self.number * len(self._parts.slices) + part

    def _gradients_of_joined(self) -> Values:
        """The gradients of the registers that the tail joins. The tail is linear in them, so zeros
        in place of their values give the same gradients."""
        leaves = self._shared.leaves
        weight_gradients = {name: leaf.grad for name, leaf in leaves.items()}
        tail = Frame(self._shared, self._parts.tail, self._before, values=self._zeros())
        tail.forward()
        begin_back(tail, self._scale)
        tail.backward()
        joined = self._pipeline.joined
        gradients = {name: tail.gradients[name] for name in joined if name in tail.gradients}
        # Other gradients depend on the values. finish computes these, with the right values.
        self._before.gradients.clear()
        for name, leaf in leaves.items():
            leaf.grad = weight_gradients[name]
        return gradients

    def _zeros(self) -> Values:
        shared = self._shared
        shapes, device = shared.program.shapes, shared.world.device
        return {
            name: torch.zeros(shapes[name], dtype=shared.format_of(name), device=device)
            for name in self._pipeline.joined
        }


def begin_back(frame: Frame, scale: float | Tensor) -> None:
    """Set the gradient of this rank's part of the loss to ``scale``, a number. Nothing happens on a
    rank without such a part."""
    program = frame.shared.program
    if program.loss is not None and program.loss in program.active:
        shape, device = program.shapes[program.loss], frame.shared.world.device
        ones = torch.ones(shape, dtype=frame.shared.format_of(program.loss), device=device)
        frame.add(program.loss, ones.mul_(scale))


def results(frame: Frame) -> tuple[dict[str, Tensor], Tensor | None]:
    """The outputs, by register, and this rank's part of the loss, if it has one."""
    program = frame.shared.program
    outputs = {name: frame.value(name) for name in program.outputs}
    return outputs, frame.value(program.loss).sum() if program.loss else None
