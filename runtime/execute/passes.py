"""Take one batch through a rank's program, at once or in micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.execute.batch import Done, Parts, SlicedBatch, begin_back, results
from runtime.execute.frame import Frame, Machinery
from runtime.execute.segment import Block, blocks_of
from runtime.inputs.seeded import InputSource, mask_key
from runtime.program.pipelined import Pipelined
from runtime.program.program import Instruction, Load, Program, sources

Known = Callable[[Tensor | None], None]
"""Told this rank's part of the loss, if it has one, as soon as that is known."""


@dataclass(frozen=True)
class Told:
    """Who is told of what in a pass. ``start``: that what its time is of begins."""

    start: Callable[[], None]
    loss: Known
    done: Done
    weight: Callable[[str], None]
    """Told the register of a weight whose gradient is complete by a pass for weights."""


@dataclass
class Passes:
    """Passes over batches; the gradients of weights gather at their leaves. ``source``: where the
    inputs are from."""

    program: Program
    source: InputSource
    blocks: tuple[Block, ...] = field(init=False)
    """The blocks that run once, before any slices."""
    backward_blocks: tuple[Block, ...] = field(init=False)
    """The blocks that add to gradients last, in such an order that they go back from the end: what
    is done once, what joins slices, and the last slice."""
    outputs: dict[str, Tensor] = field(init=False, default_factory=dict[str, Tensor])
    """Of the last pass, by register."""
    scale: float = field(init=False, default=1.0)
    """What gradients are multiplied with."""
    _under_way: SlicedBatch | None = field(init=False, default=None)
    """The next batch, if some of its slices have gone forward."""

    def __post_init__(self) -> None:
        program = self.program
        kept = {*program.outputs, *([program.loss] if program.loss else [])}
        pipeline = program.pipeline
        if pipeline is None:
            self.blocks = self.backward_blocks = blocks_of(program.instructions, frozenset(kept))
            return
        later = [i for part in (*pipeline.slices, pipeline.tail) for i in part]
        read = {name for instruction in later for name in sources(instruction)}
        self.blocks = blocks_of(program.instructions, frozenset(kept | read))
        joined = frozenset(pipeline.joined)
        slices = [
            _chunks_of(pipeline.chunks(number), joined) for number in range(len(pipeline.slices))
        ]
        self._parts = Parts(self.blocks, slices, blocks_of(pipeline.tail, frozenset(kept)))
        last = (block for chunk in slices[-1] for block in chunk)
        self.backward_blocks = (*self.blocks, *self._parts.tail, *last)

    def run(
        self, number: int, shared: Machinery, told: Told, following: Machinery | None = None
    ) -> None:
        """Take batch ``number``, with the weights of ``shared``. ``following``: those of the next
        batch, if its slices may begin before this one has ended."""
        self.outputs = {}
        if self.source.counts:
            told.start()
        if (pipeline := self.program.pipeline) is not None:
            self._run_slices(number, pipeline, shared, told, following)
            return
        frame = self._loaded_frame(shared, number)
        if not self.source.counts:
            told.start()
        told.loss(self._forward(frame))
        self.backward(frame, self.scale, told.done)

    def forward(self, number: int, shared: Machinery) -> tuple[Frame | None, Tensor | None]:
        """Take batch ``number`` forward alone. What ``backward`` goes back on, without a pipeline,
        and this rank's part of the loss."""
        self.outputs = {}
        if (pipeline := self.program.pipeline) is not None:
            return None, self._slices_forward(number, pipeline, shared)
        frame = self._loaded_frame(shared, number)
        return frame, self._forward(frame)

    def backward(self, frame: Frame, scale: float | Tensor, done: Done) -> None:
        """Take back what went forward. ``scale``: the gradient of the loss."""
        begin_back(frame, scale)
        frame.values.clear()
        done(len(self.backward_blocks))
        frame.backward(done)

    def _loaded_frame(self, shared: Machinery, number: int) -> Frame:
        frame = Frame(shared, self.blocks)
        frame.values.update(self._loaded(shared, self.program.instructions, number))
        return frame

    def _forward(self, frame: Frame) -> Tensor | None:
        frame.forward()
        self.outputs, loss = results(frame)
        return loss

    def _slices_forward(self, number: int, pipeline: Pipelined, shared: Machinery) -> Tensor | None:
        batch = self._batch(number, pipeline, shared)
        for turn in pipeline.turns:
            if turn.is_forward:
                batch.forward(turn.chunk)
                if turn.chunk == pipeline.interleave - 1:
                    batch.forget(turn.batch)
        loss = batch.loss()
        self.outputs = dict(batch.outputs)
        return loss

    def _run_slices(
        self,
        number: int,
        pipeline: Pipelined,
        shared: Machinery,
        told: Told,
        following: Machinery | None,
    ) -> None:
        batch, self._under_way = self._under_way or self._batch(number, pipeline, shared), None
        assert batch.number == number, "the batch that was begun is the next one"
        ahead = None
        if following is not None and pipeline.lead:
            ahead = self._batch(number + 1, pipeline, following)
        world = shared.world
        world.batch = number
        if not self.source.counts:
            told.start()
        early = self.program.loss is None
        if early:
            # At once, so that ranks with the loss need not wait for the backward pass of this one.
            told.loss(None)
        for kind, part, chunk in pipeline.turns:
            if kind == "weights":
                for register in batch.weights(part, chunk):
                    told.weight(register)
                continue
            if kind == "forward":
                if part >= batch.started[chunk]:
                    batch.forward(chunk)
                continue
            if ahead is not None and part + pipeline.lead >= len(pipeline.slices):
                ahead.forward()
            batch.backward(part, chunk, told.done)
        loss = batch.finish(told.done)
        self.outputs = dict(batch.outputs)
        if not early:
            told.loss(loss)
        batch.go_back(told.done)
        self._under_way = ahead

    def _batch(self, number: int, pipeline: Pipelined, shared: Machinery) -> SlicedBatch:
        once = (*self.program.instructions, *pipeline.tail)
        inputs = (
            self._loaded(shared, once, number),
            [self._loaded(shared, part, number) for part in pipeline.slices],
        )
        return SlicedBatch(number, shared, self._parts, pipeline, inputs, self.scale)

    def _loaded(
        self, shared: Machinery, instructions: Iterable[Instruction], number: int
    ) -> dict[str, Tensor]:
        """The inputs that instructions load, in the format in which the run computes; of masks,
        their keys."""
        device = shared.world.device
        loads = [i for i in instructions if isinstance(i, Load) and i.leaf.kind != "weight"]
        masks, seed = self.program.masks, self.source.seed if self.program.masks else 0
        drawn = {i.target: mask_key(i.leaf, seed, number) for i in loads if i.target in masks}
        keys = torch.tensor(list(drawn.values()), dtype=torch.int64).to(device)
        return dict(zip(drawn, keys, strict=True)) | {
            # From pinned memory.
            i.target: piece.to(device, shared.format_of(i.target), non_blocking=True)
            for i in loads
            if i.target not in masks
            for piece in (self._read(shared, i, number),)
        }

    def _read(self, shared: Machinery, load: Load, number: int) -> Tensor:
        with shared.world.busy("reading its data"):
            return self.source.piece(load.leaf, load.region, number)


def _chunks_of(
    chunks: Sequence[Sequence[Instruction]], joined: frozenset[str]
) -> tuple[tuple[Block, ...], ...]:
    """The blocks of the chunks of a slice. What later ones read is kept."""
    made: list[tuple[Block, ...]] = []
    kept: frozenset[str] = frozenset()
    for chunk in reversed(chunks):
        made.append(blocks_of(chunk, kept, joined))
        kept |= {name for instruction in chunk for name in sources(instruction)}
    return tuple(reversed(made))
