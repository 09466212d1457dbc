"""One pass of a rank's program over a batch, forward and back, all at once or slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.data import Source
from runtime.frame import Frame, Machinery
from runtime.program import Instruction, Load, Pipelined
from runtime.stretch import Block, blocks_of, sources

Known = Callable[[Tensor | None], None]
"""Told this rank's part of the loss, if it has one, as soon as that is known."""
Done = Callable[[int], None]
"""Told the number of each block whose way back has been taken."""


@dataclass
class Passes:
    """Passes over batches; the gradients of weights gather at their leaves. ``source``: where the
    inputs are from."""

    shared: Machinery
    source: Source
    blocks: tuple[Block, ...] = field(init=False)
    """Those of what is done once, before any slices."""
    outputs: dict[str, Tensor] = field(init=False, default_factory=dict[str, Tensor])
    """Of the last pass, by register."""
    scale: float = field(init=False, default=1.0)
    """What gradients are multiplied with."""

    def __post_init__(self) -> None:
        program = self.shared.program
        kept = {*program.outputs, *([program.loss] if program.loss else [])}
        pipeline = program.pipeline
        if pipeline is None:
            self.blocks = blocks_of(program.instructions, frozenset(kept))
            return
        later = [i for part in (*pipeline.slices, pipeline.tail) for i in part]
        read = {name for instruction in later for name in sources(instruction)}
        self.blocks = blocks_of(program.instructions, frozenset(kept | read))
        joined = frozenset(pipeline.joined)
        self._slices = [blocks_of(part, frozenset(), joined) for part in pipeline.slices]
        self._tail = blocks_of(pipeline.tail, frozenset(kept))

    def run(self, number: int, start: Callable[[], None], known: Known, done: Done) -> None:
        """Take batch ``number``. ``start`` is called when its data is there."""
        self.outputs = {}
        program = self.shared.program
        before = Frame(self.shared, self.blocks)
        self._load(before, program.instructions, number)
        pipeline = program.pipeline
        if pipeline is None:
            start()
            before.forward()
            known(self._finish(before))
            self._begin_back(before)
        else:
            self._load(before, pipeline.tail, number)
            loaded = [self._loaded(part, number) for part in pipeline.slices]
            start()
            before.forward()
            known(self._sliced(pipeline, before, loaded))
        before.values.clear()
        before.backward(done)

    def _sliced(
        self, pipeline: Pipelined, before: Frame, loaded: list[dict[str, Tensor]]
    ) -> Tensor | None:
        """All slices, in their order, and what joins them; this rank's part of the loss."""
        sums, known = self._zeros(pipeline), self._gradients_of_joined(pipeline, before)
        frames: dict[int, Frame] = {}
        for forward, part in pipeline.turns:
            if forward:
                blocks, values = self._slices[part], loaded[part]
                loaded[part] = {}
                frames[part] = Frame(self.shared, blocks, before, sums, known, values)
                frames[part].forward()
            else:
                frames.pop(part).backward()
        tail = Frame(self.shared, self._tail, before, values=sums)
        tail.forward()
        loss = self._finish(tail)
        if pipeline.tail_trains:
            self._begin_back(tail)
            tail.values.clear()
            tail.backward()
        return loss

    def _gradients_of_joined(self, pipeline: Pipelined, before: Frame) -> dict[str, Tensor]:
        """The tail's gradients of what it joins. It is linear, so zeros do for what is to come."""
        leaves = self.shared.leaves
        summed = {name: leaf.grad for name, leaf in leaves.items()}
        tail = Frame(self.shared, self._tail, before, values=self._zeros(pipeline))
        tail.forward()
        self._begin_back(tail)
        tail.backward()
        found = {name: tail.gradients[name] for name in pipeline.joined if name in tail.gradients}
        # What depends on the values is taken with the right ones, in the end.
        before.gradients.clear()
        for name, leaf in leaves.items():
            leaf.grad = summed[name]
        return found

    def _zeros(self, pipeline: Pipelined) -> dict[str, Tensor]:
        shapes, device = self.shared.program.shapes, self.shared.world.device
        dtype = self.shared.precision.dtype
        return {n: torch.zeros(shapes[n], dtype=dtype, device=device) for n in pipeline.joined}

    def _begin_back(self, frame: Frame) -> None:
        """The gradient of the loss is 1 where it counts, or the scale of the loss."""
        program, precision = self.shared.program, self.shared.precision
        if program.loss is not None and program.loss in program.active:
            shape, device = program.shapes[program.loss], self.shared.world.device
            one = torch.full(shape, self.scale, dtype=precision.dtype, device=device)
            frame.add(program.loss, one)

    def _finish(self, frame: Frame) -> Tensor | None:
        """Keep the outputs, and let autograd's records hold what the way back needs. This rank's
        part of the loss."""
        program = self.shared.program
        self.outputs = {name: frame.value(name) for name in program.outputs}
        return frame.value(program.loss).sum() if program.loss else None

    def _load(self, frame: Frame, instructions: Iterable[Instruction], number: int) -> None:
        frame.values.update(self._loaded(instructions, number))

    def _loaded(self, instructions: Iterable[Instruction], number: int) -> dict[str, Tensor]:
        """The inputs that instructions load, in the format in which the run computes."""
        device, dtype = self.shared.world.device, self.shared.precision.dtype
        return {
            i.target: self.source.piece(i.leaf, i.region, number).to(device, dtype)
            for i in instructions
            if isinstance(i, Load) and i.leaf.kind != "weight"
        }
