"""Run a batch through a rank's program, as a whole or in slices (micro-batches)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.execute.batch import BlockCallback, ProgramBlocks, SlicedBatch, begin_back, results
from runtime.execute.frame import Frame, FrameContext
from runtime.execute.segment import Block, blocks_of
from runtime.inputs.seeded import InputSource, mask_key
from runtime.program.pipelined import PipelineProgram
from runtime.program.program import Instruction, Load, Program, sources

LossCallback = Callable[[Tensor | None], None]
"""Called with this rank's part of the loss, or None, as soon as that is known."""


@dataclass(frozen=True)
class PassCallbacks:
    """The callbacks of a pass."""

    start: Callable[[], None]
    """Called when the timed part begins."""
    loss: LossCallback
    done: BlockCallback
    weight: Callable[[str], None]
    """Called with the register of each weight whose gradient a pass for weights has completed."""


@dataclass
class Passes:
    """Forward and backward passes over batches. The gradients of weights add up at their leaves.
    ``source``: where inputs come from."""

    program: Program
    source: InputSource
    blocks: tuple[Block, ...] = field(init=False)
    """The blocks that run once, before any slices."""
    backward_blocks: tuple[Block, ...] = field(init=False)
    """The blocks whose backward passes complete gradients: those before the slices, those of the
    tail, and those of the last slice. Their backward passes run from the last to the first."""
    outputs: dict[str, Tensor] = field(init=False, default_factory=dict[str, Tensor])
    """The outputs of the last pass, by register."""
    scale: float = field(init=False, default=1.0)
    """The loss scale, by which gradients are multiplied."""
    _under_way: SlicedBatch | None = field(init=False, default=None)
    """The next batch, if some of its slices have gone forward."""

    def __post_init__(self) -> None:
        program = self.program
        kept = {*program.outputs, *([program.loss] if program.loss else [])}
        pipeline = program.pipeline
        self._loads = _loads(program.instructions, () if pipeline is None else pipeline.tail)
        if pipeline is None:
            self.blocks = self.backward_blocks = blocks_of(program.instructions, frozenset(kept))
            return
        self._slice_loads = [_loads(part) for part in pipeline.slices]
        later = [i for part in (*pipeline.slices, pipeline.tail) for i in part]
        read = {name for instruction in later for name in sources(instruction)}
        self.blocks = blocks_of(program.instructions, frozenset(kept | read))
        joined = frozenset(pipeline.joined)
        slices = [
            _chunks_of(pipeline.chunks(number), joined) for number in range(len(pipeline.slices))
        ]
        self._parts = ProgramBlocks(self.blocks, slices, blocks_of(pipeline.tail, frozenset(kept)))
        last = (block for chunk in slices[-1] for block in chunk)
        self.backward_blocks = (*self.blocks, *self._parts.tail, *last)

    def run(
        self,
        number: int,
        shared: FrameContext,
        callbacks: PassCallbacks,
        following: FrameContext | None = None,
    ) -> None:
        """Run batch ``number`` forward and backward, with the weights of ``shared``. ``following``:
        has the weights for the next batch, if its slices may begin before this one has ended."""
        self.outputs = {}
        if self.source.counts:
            callbacks.start()
        if (pipeline := self.program.pipeline) is not None:
            self._run_slices(number, pipeline, shared, callbacks, following)
            return
        frame = self._loaded_frame(shared, number)
        if not self.source.counts:
            callbacks.start()
        callbacks.loss(self._forward(frame))
        self.backward(frame, self.scale, callbacks.done)

    def forward(self, number: int, shared: FrameContext) -> tuple[Frame | None, Tensor | None]:
        """Run batch ``number`` forward only. Return the frame for ``backward``, which is None for a
        pipeline, and this rank's part of the loss, if it has one."""
        self.outputs = {}
        if (pipeline := self.program.pipeline) is not None:
            return None, self._slices_forward(number, pipeline, shared)
        frame = self._loaded_frame(shared, number)
        return frame, self._forward(frame)

    def backward(self, frame: Frame, scale: float | Tensor, done: BlockCallback) -> None:
        """Run the backward pass of a frame. ``scale``: the gradient of the loss."""
        begin_back(frame, scale)
        frame.values.clear()
        done(len(self.backward_blocks))
        frame.backward(done)

    def _loaded_frame(self, shared: FrameContext, number: int) -> Frame:
        frame = Frame(shared, self.blocks)
        frame.values.update(self._loaded(shared, self._loads, number))
        return frame

    def _forward(self, frame: Frame) -> Tensor | None:
        frame.forward()
        self.outputs, loss = results(frame)
        return loss

    def _slices_forward(
        self, number: int, pipeline: PipelineProgram, shared: FrameContext
    ) -> Tensor | None:
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
        pipeline: PipelineProgram,
        shared: FrameContext,
        callbacks: PassCallbacks,
        following: FrameContext | None,
    ) -> None:
        batch, self._under_way = self._under_way or self._batch(number, pipeline, shared), None
        assert batch.number == number, "the batch under way is the next one"
        ahead = None
        if following is not None and pipeline.lead:
            ahead = self._batch(number + 1, pipeline, following)
        world = shared.world
        world.batch = number
        if not self.source.counts:
            callbacks.start()
        has_no_loss = self.program.loss is None
        if has_no_loss:
            # At once, so that ranks with the loss need not wait for the backward pass of this one.
            callbacks.loss(None)
        for kind, part, chunk in pipeline.turns:
            if kind == "weights":
                for register in batch.weights(part, chunk):
                    callbacks.weight(register)
                continue
            if kind == "forward":
                if part >= batch.started[chunk]:
                    batch.forward(chunk)
                continue
            if ahead is not None and part + pipeline.lead >= len(pipeline.slices):
                ahead.forward()
            batch.backward(part, chunk, callbacks.done)
        loss = batch.finish(callbacks.done)
        self.outputs = dict(batch.outputs)
        if not has_no_loss:
            callbacks.loss(loss)
        batch.go_back(callbacks.done)
        self._under_way = ahead

    def _batch(self, number: int, pipeline: PipelineProgram, shared: FrameContext) -> SlicedBatch:
        inputs = (
            self._loaded(shared, self._loads, number),
            [self._loaded(shared, loads, number) for loads in self._slice_loads],
        )
        return SlicedBatch(number, shared, self._parts, pipeline, inputs, self.scale)

    def _loaded(
        self, shared: FrameContext, loads: Sequence[Load], number: int
    ) -> dict[str, Tensor]:
        """The inputs of some loads, by register, in the format of the run. For a mask, its key."""
        device = shared.world.device
        masks, seed = self.program.masks, self.source.seed if self.program.masks else 0
        mask_keys = {i.target: mask_key(i.leaf, seed, number) for i in loads if i.target in masks}
        keys = torch.tensor(list(mask_keys.values()), dtype=torch.int64).to(
            device, non_blocking=True
        )
        return dict(zip(mask_keys, keys, strict=True)) | {
            # The source is pinned memory, so the copy need not block.
            i.target: piece.to(device, shared.format_of(i.target), non_blocking=True)
            for i in loads
            if i.target not in masks
            for piece in (self._read(shared, i, number),)
        }

    def _read(self, shared: FrameContext, load: Load, number: int) -> Tensor:
        with shared.world.busy("reading its data"):
            return self.source.piece(load.leaf, load.region, number)


def _loads(*parts: Iterable[Instruction]) -> tuple[Load, ...]:
    """The loads of inputs among instructions."""
    loads = (i for part in parts for i in part if isinstance(i, Load))
    return tuple(load for load in loads if load.leaf.kind != "weight")


def _chunks_of(
    chunks: Sequence[Sequence[Instruction]], joined: frozenset[str]
) -> tuple[tuple[Block, ...], ...]:
    """The blocks of each chunk of a slice. Registers that later chunks read are kept."""
    blocks: list[tuple[Block, ...]] = []
    kept: frozenset[str] = frozenset()
    for chunk in reversed(chunks):
        blocks.append(blocks_of(chunk, kept, joined))
        kept |= {name for instruction in chunk for name in sources(instruction)}
    return tuple(reversed(blocks))
